import os
from pathlib import Path

import pytest

from device.errors import KeyStoreError
from device.platform.files import replace_synced
from device.trust.keystore import KeyPurpose, KeyStore, read_key


def test_created_keys_open_again(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert not KeyStore.exists(folder)
    made = KeyStore.create(folder)
    opened = KeyStore.open(folder)
    assert KeyStore.exists(folder)
    assert (opened.verdict.kid, opened.http.kid, opened.seal.kid) == (
        made.verdict.kid,
        made.http.kid,
        made.seal.kid,
    )
    assert opened.data_key == made.data_key
    assert len({opened.verdict.seed, opened.http.seed, opened.seal.seed, opened.data_key}) == 4


def test_modes_and_names(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        KeyStore.create(tmp_path / "keys")
    finally:
        os.umask(old)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [
        "data.key",
        "http.key",
        "seal.key",
        "verdict.key",
    ]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    made = KeyStore.create(tmp_path / "keys")
    with pytest.raises(KeyStoreError, match="never overwritten"):
        KeyStore.create(tmp_path / "keys")
    assert KeyStore.open(tmp_path / "keys").verdict.kid == made.verdict.kid


def test_a_creation_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    partial = tmp_path / "keys.partial"
    partial.mkdir()
    (partial / "verdict.key").write_bytes(b"half")
    KeyStore.create(tmp_path / "keys")
    assert not partial.exists()


def test_secrets_stay_out_of_a_repr(tmp_path: Path) -> None:
    keys = KeyStore.create(tmp_path / "keys")
    assert keys.data_key.hex() not in repr(keys)
    assert repr(keys.data_key) not in repr(keys)
    assert repr(keys.verdict.seed) not in repr(keys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected 32 bytes, found 0"),
        (b"x" * 31, "expected 32 bytes, found 31"),
        (b"x" * 33, "expected 32 bytes, found more"),
        (bytes(32), "only zeros"),
    ],
)
def test_damaged_keys(tmp_path: Path, content: bytes, words: str) -> None:
    KeyStore.create(tmp_path / "keys")
    path = tmp_path / "keys" / "seal.key"
    path.write_bytes(content)
    with pytest.raises(KeyStoreError, match=f"{words}.*run `palmctl factory-reset`"):
        KeyStore.open(tmp_path / "keys")


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    KeyStore.create(tmp_path / "keys")
    (tmp_path / "keys" / "http.key").chmod(0o640)
    with pytest.raises(KeyStoreError, match="expected mode 0600, found 0640"):
        KeyStore.open(tmp_path / "keys")
    assert read_key(tmp_path / "keys", KeyPurpose.VERDICT)


def test_a_folder_that_others_can_enter(tmp_path: Path) -> None:
    KeyStore.create(tmp_path / "keys")
    (tmp_path / "keys").chmod(0o755)
    with pytest.raises(KeyStoreError, match="expected mode 0700, found 0755"):
        KeyStore.open(tmp_path / "keys")


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    KeyStore.create(tmp_path / "keys")
    path = tmp_path / "keys" / "verdict.key"
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(KeyStoreError, match="must be a plain file"):
        KeyStore.open(tmp_path / "keys")
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(KeyStoreError, match="is no plain file"):
        KeyStore.open(tmp_path / "keys")


def test_missing_keys_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="palmctl provision"):
        KeyStore.open(tmp_path / "keys")
    KeyStore.create(tmp_path / "keys")
    (tmp_path / "keys" / "data.key").unlink()
    with pytest.raises(KeyStoreError, match="no data key at"):
        KeyStore.open(tmp_path / "keys")


def test_a_state_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="cannot be written"):
        KeyStore.create(tmp_path / "none" / "keys")


def test_replacing_survives_what_an_earlier_try_left(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    (tmp_path / "trust.json.partial").write_bytes(b"half of an earl")
    replace_synced(path, b"whole", mode=0o600)
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["trust.json"]
