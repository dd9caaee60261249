import contextlib
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from device.errors import KeysAbsent, KeyStoreError
from device.trust.credentials import (
    drop_in_path,
    encrypt_keys,
    key_source,
    open_stored,
    read_credential,
    run_tool,
    write_drop_in,
)
from device.trust.keystore import KeyPurpose, KeyStore
from device.wipe.wipe import Wipe, WipeStage, begin_wipe, confirm_wipe, finish_wipe
from tests.device.updates.update_fuse import Fuse, PowerCut, power


def fake_tool(command: Sequence[str], given: bytes) -> bytes:
    """Encrypts by turning bytes round, which is all that the steps around it can tell."""
    return given[::-1]


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    (tmp_path / "state").mkdir()
    return KeyStore.create(tmp_path / "state/keys")


def decrypted(state: Path, folder: Path) -> Path:
    """What the service manager would give a unit."""
    folder.mkdir()
    for purpose in KeyPurpose:
        raw = (state / "credentials" / f"{purpose}.cred").read_bytes()
        (folder / f"palm-access.{purpose}").write_bytes(raw[::-1])
    return folder


def test_keys_move_into_credentials_and_are_read_from_there(keys: KeyStore, tmp_path: Path) -> None:
    state, store = tmp_path / "state", tmp_path / "credstore"
    encrypt_keys(state / "keys", credstore=store, run=fake_tool)
    assert not (state / "keys").exists()
    names = sorted(link.name for link in store.iterdir())
    assert names == [f"palm-access.{purpose}" for purpose in sorted(KeyPurpose)]
    assert all(link.readlink().parent == state / "credentials" for link in store.iterdir())
    assert {path.stat().st_mode & 0o777 for path in (state / "credentials").iterdir()} == {0o600}
    given = {"CREDENTIALS_DIRECTORY": str(decrypted(state, tmp_path / "given"))}
    source = key_source(state / "keys", given)
    opened = KeyStore.load(source)
    assert (opened.verdict, opened.http, opened.seal, opened.data_key) == (
        keys.verdict,
        keys.http,
        keys.seal,
        keys.data_key,
    )
    assert KeyStore.exists(state / "keys"), "no others are made beside them"
    with pytest.raises(KeyStoreError, match="systemd service"):
        KeyStore.load(key_source(state / "keys", {}))
    (tmp_path / "given/palm-access.data").unlink()
    with pytest.raises(KeyStoreError, match=r"LoadCredentialEncrypted=palm-access\.data"):
        KeyStore.load(source)


def test_an_encryption_that_was_cut_off_goes_on(keys: KeyStore, tmp_path: Path) -> None:
    state, store = tmp_path / "state", tmp_path / "credstore"
    calls = 0

    def until_the_third(command: Sequence[str], given: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyStoreError("the power went")
        return fake_tool(command, given)

    with pytest.raises(KeyStoreError, match="power"):
        encrypt_keys(state / "keys", credstore=store, run=until_the_third)
    assert KeyStore.open(state / "keys").verdict == keys.verdict
    kept = (state / "keys/http.key").read_bytes()
    assert encrypt_keys(state / "keys", credstore=store, run=fake_tool)
    # As after a cut between overwriting one file and the end.
    (state / "keys").mkdir(mode=0o700)
    (state / "keys/http.key").write_bytes(bytes(len(kept)))
    assert encrypt_keys(state / "keys", credstore=store, run=fake_tool)
    assert not (state / "keys").exists()
    assert not encrypt_keys(state / "keys", credstore=store, run=fake_tool)
    opened = KeyStore.load(partial(read_credential, decrypted(state, tmp_path / "given")))
    assert (opened.http, opened.data_key) == (keys.http, keys.data_key)


def given_at_a_start(state: Path, store: Path, folder: Path) -> dict[str, str]:
    """What the service manager gives the unit with the drop-in: each credential that it finds, and opens."""
    folder.mkdir()
    for link in store.glob("palm-access.*") if store.exists() else ():
        if link.exists():
            (folder / link.name).write_bytes(link.read_bytes()[::-1])
    return {"CREDENTIALS_DIRECTORY": str(folder)}


@pytest.mark.parametrize("again", [False, True])
def test_wherever_the_power_goes_the_core_starts_with_its_keys(tmp_path: Path, again: bool) -> None:
    """At the first encryption, and when the command is given once more to a device that has it done."""
    for cut in range(1, 200):
        state, store = tmp_path / f"{cut}/state", tmp_path / f"{cut}/store"
        state.mkdir(parents=True)
        keys = KeyStore.create(state / "keys")
        if again:
            encrypt_keys(state / "keys", credstore=store, run=fake_tool)
        fuse = Fuse(tmp_path, cut)
        with power(fuse), contextlib.suppress(PowerCut):
            encrypt_keys(state / "keys", credstore=store, run=fake_tool)
        given = given_at_a_start(state, store, tmp_path / f"{cut}/given")
        assert KeyStore.load(key_source(state / "keys", given)).verdict == keys.verdict, cut
        encrypt_keys(state / "keys", credstore=store, run=fake_tool)
        given = given_at_a_start(state, store, tmp_path / f"{cut}/given again")
        assert KeyStore.load(key_source(state / "keys", given)).data_key == keys.data_key
        assert not (state / "keys").exists()
        if not fuse.blown:
            break
    assert not fuse.blown
    assert again or cut > 30


def test_the_core_is_given_the_keys_and_no_other_unit(tmp_path: Path) -> None:
    write_drop_in(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["palmd.service.d"]
    core = drop_in_path(tmp_path).read_text()
    assert core.count("LoadCredentialEncrypted=palm-access.") == len(KeyPurpose)


def test_without_credentials_of_ours_the_files_count(keys: KeyStore, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/somebody-elses").write_bytes(b"x")
    for environ in ({}, {"CREDENTIALS_DIRECTORY": str(tmp_path / "other")}):
        assert KeyStore.load(key_source(tmp_path / "state/keys", environ)).verdict == keys.verdict


def test_a_tool_that_does_not_give_them_back_costs_no_key(keys: KeyStore, tmp_path: Path) -> None:
    def broken(command: Sequence[str], given: bytes) -> bytes:
        return given[:-1]

    with pytest.raises(KeyStoreError, match="left unchanged"):
        encrypt_keys(tmp_path / "state/keys", credstore=tmp_path / "credstore", run=broken)
    assert KeyStore.open(tmp_path / "state/keys").verdict == keys.verdict


def test_a_wipe_destroys_credentials_too_http_last(keys: KeyStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    encrypt_keys(state / "keys", credstore=tmp_path / "credstore", run=fake_tool)
    begin_wipe(state, Wipe(WipeStage.ERASING, "w", "d", "g", "v"))
    finish_wipe(state)
    assert [path.name for path in (state / "credentials").iterdir()] == ["http.cred"]
    confirm_wipe(state)
    assert [path.name for path in state.iterdir()] == ["wipe.json"]


def test_absent_keys_are_no_damage(tmp_path: Path) -> None:
    with pytest.raises(KeysAbsent):
        KeyStore.open(tmp_path / "keys")


def test_one_key_that_is_missing_is_damage_and_no_new_device(tmp_path: Path) -> None:
    KeyStore.create(tmp_path / "keys")
    (tmp_path / "keys" / "http.key").unlink()
    with pytest.raises(KeyStoreError, match=r"no http key at .*, where others are; restore it") as raised:
        KeyStore.open(tmp_path / "keys")
    assert not isinstance(raised.value, KeysAbsent)


def test_a_missing_tool_says_what_is_needed() -> None:
    with pytest.raises(KeyStoreError, match="systemd 250"):
        run_tool(["no-such-program-here"], b"")
    with pytest.raises(KeyStoreError, match="failed"):
        run_tool(["false"], b"")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-creds") is None, reason="needs root and systemd"
)
def test_with_the_real_tool(keys: KeyStore, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run_tool(["systemd-creds", "setup"], b"")
    encrypt_keys(state / "keys", with_key="host", credstore=tmp_path / "credstore")
    assert open_stored(state / "keys").verdict == keys.verdict
    for purpose, key in (("verdict", keys.verdict.seed), ("data", keys.data_key)):
        sealed = (tmp_path / "credstore" / f"palm-access.{purpose}").read_bytes()
        assert key not in sealed
        name = f"--name=palm-access.{purpose}"
        assert run_tool(["systemd-creds", "decrypt", name, "-", "-"], sealed) == key


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_gives_away_nothing_that_palmd_leads_it_to(keys: KeyStore, tmp_path: Path) -> None:
    """The folder is palmd's, which may put links into its place, before or meanwhile."""
    state, store, victim = tmp_path / "state", tmp_path / "credstore", tmp_path / "victim"
    for path in (state, state / "keys", *(state / "keys").iterdir()):
        os.chown(path, 65_532, 65_532)
    victim.mkdir()
    (victim / "http.cred").write_text("root's")

    def nothing_given() -> bool:
        entries = (victim, *victim.iterdir())
        return [path.name for path in entries] == ["victim", "http.cred"] and all(
            path.stat().st_uid == 0 for path in entries
        )

    (state / "credentials").symlink_to(victim)
    with pytest.raises(KeyStoreError, match="is a link or a file, not a folder"):
        encrypt_keys(state / "keys", credstore=store, run=fake_tool)
    assert nothing_given()
    (state / "credentials").unlink()

    def exchanged(command: Sequence[str], given: bytes) -> bytes:
        if not (state / "moved").exists():
            (state / "credentials").rename(state / "moved")
            (state / "credentials").symlink_to(victim)
        return fake_tool(command, given)

    with contextlib.suppress(KeyStoreError, OSError):
        encrypt_keys(state / "keys", credstore=store, run=exchanged)
    assert nothing_given()
    assert {path.stat().st_uid for path in (state / "moved").iterdir()} == {65_532}


def test_a_key_that_belongs_to_somebody_else_is_refused(
    keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    if me == 0:
        KeyStore.open(tmp_path / "state/keys")  # root's files are anybody's to rely on
        os.chown(tmp_path / "state/keys/data.key", 65_532, -1)
    with pytest.raises(KeyStoreError, match=r"belongs to user \d+, who could exchange it, .*chown"):
        KeyStore.open(tmp_path / "state/keys")
