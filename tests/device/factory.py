"""The factory of docs/howto/ATTESTATION.md: its commands, typed as they are on the page."""

import subprocess
from pathlib import Path

from tests.docs.page_commands import DOCS, Command, blocks_of

PAGE = DOCS / "howto/ATTESTATION.md"


def commands() -> tuple[tuple[Command, ...], tuple[Command, ...]]:
    """Those that make a CA, and those that make a board's key and certificate."""
    ca, board = (block.commands for block in blocks_of(PAGE) if block.place == "factory")
    return ca, board


def make_ca(folder: Path) -> Path:
    """The CA's certificate, `folder/factory-ca.pem`."""
    _type(commands()[0], folder)
    return folder / "factory-ca.pem"


def make_board(folder: Path, key: str = "") -> Path:
    """The certificate of a board of the CA in `folder`, `chain.pem`; its key is `board.key`.

    `key`: other arguments of `openssl genpkey`.
    """
    made, *others = commands()[1]
    if key:
        made = Command(f"openssl genpkey {key} -out board.key", ())
    _type((made, *others), folder)
    return folder / "chain.pem"


def _type(typed: tuple[Command, ...], folder: Path) -> None:
    for command in typed:
        subprocess.run(["bash", "-ec", command.text], cwd=folder, check=True, capture_output=True)
