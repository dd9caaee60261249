"""A model under another name."""

import json
from pathlib import Path
from typing import Any

from models.manifest import MANIFEST_NAME, load_manifest


def republish(folder: Path, model_id: str, out: Path) -> None:
    """The network of `folder` once more under another model_id, in the new folder `out`: for trying out how a
    model and its gallery epoch change together. Raises ModelsError, OSError."""
    manifest = load_manifest(folder)
    obj: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    out.mkdir(parents=True)
    for file in manifest.files:
        (out / file.name).write_bytes((folder / file.name).read_bytes())
    (out / MANIFEST_NAME).write_text(json.dumps(obj | {"model_id": model_id}, indent=2), encoding="utf-8")
