"""The files of a simulated validator: its key, and the counters that must survive its restarts."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from device.platform.files import naming, replace_synced
from link1 import members
from link1.canonical import b64_decode, read_strict
from link1.errors import FormatError, SignatureError
from link1.keys import KEY_BYTES, PublicKey, SigningKey
from link1.plain_file import read_plain_file
from link1.validator.memory import DeskMemory

MAX_KEY_FILE_BYTES = 1024
MAX_STATE_BYTES = 1 << 20
"""Far above what the counters and 32 answers need; a larger file is not ours."""


def read_key(path: Path) -> SigningKey:
    """A key file holds 32 raw bytes or their base64; raises FormatError or OSError."""
    data = read_plain_file(path, MAX_KEY_FILE_BYTES)
    if len(data) == KEY_BYTES:
        return SigningKey.from_seed(data)
    try:
        return SigningKey.from_seed(b64_decode(data.decode("ascii").strip(), length=KEY_BYTES))
    except (FormatError, UnicodeDecodeError):
        raise FormatError(f"{path} holds neither 32 raw bytes nor their base64") from None


def create_key(path: Path) -> SigningKey:
    """Make a new key file, readable by its owner only; raises FileExistsError rather than replace one."""
    key = SigningKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(key.seed)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()  # what a full disk left is no key, and would be in the way of the next try
        raise
    return key


@contextmanager
def used_alone(key_file: Path) -> Iterator[None]:
    """No other program signs with this key and counts meanwhile. Raises FormatError where one does."""
    with key_file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FormatError(
                f"{key_file} is in use by another program, and each number of a key is given once; "
                "end that one, or use another key"
            ) from None
        yield


def state_path(key_file: Path) -> Path:
    return key_file.with_name(key_file.name + ".state.json")


def load_memory(path: Path, key: PublicKey, *, forgot: bool = False) -> DeskMemory:
    """What is kept at `path`; a new key's counters start at 0, and what was acted on before stays so.

    `forgot`: verdicts were answered that are not kept there, by a validator that was in this one's place.

    Raises FormatError for a file that is damaged: counters must not restart by accident.
    """
    try:
        data = read_plain_file(path, MAX_STATE_BYTES)
    except FileNotFoundError:
        return DeskMemory(forgot=forgot)
    try:
        obj = read_strict(data, max_bytes=MAX_STATE_BYTES)
        kid = members.text(obj, "dbd_kid", members.HEX32)
        memory = DeskMemory.from_obj(members.nested(obj, "memory"))
        _check_memory(memory, kid, key)
    except (FormatError, SignatureError) as error:
        raise FormatError(
            f"{path} is damaged ({error}); restore it, or remove it together with its key and give --forgot"
        ) from None
    memory = memory if kid == key.kid else memory.under_key(key.kid)
    return replace(memory, forgot=memory.forgot or forgot)


def _check_memory(memory: DeskMemory, kid: str, key: PublicKey) -> None:
    """Raises FormatError or SignatureError for what the validator with the key `kid` cannot have written."""
    decision_seq, dbd_event_seq = memory.last_kept(kid)
    if memory.decision_seq < decision_seq or memory.dbd_event_seq < dbd_event_seq:
        raise FormatError("a counter is below what was signed with it")
    for answer in memory.answered:
        answer.verify(key)


def save_memory(path: Path, kid: str, memory: DeskMemory) -> None:
    """Replace the file at once and durably; raises an OSError that names it."""
    kept = json.dumps({"dbd_kid": kid, "memory": memory.to_obj()})  # far faster than `json.dump`
    replace_synced(path, kept.encode("ascii"), mode=0o600)
