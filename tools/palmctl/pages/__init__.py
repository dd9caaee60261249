"""Pages for a person in front of the device: on loopback only, with a secret in their address."""

import json
from pathlib import Path
from typing import Final

WORDS: Final[dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("static").joinpath("words.json").read_bytes()
)
"""What people read while they enrol, on the totem's page and the terminal: {language: {name: text}}. A page
begins in the first language."""
