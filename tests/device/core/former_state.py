"""The state of a device that has served, as the code of commit ebd77c7 leaves it: a file next to this one.

It holds a state directory (keys, trust, gallery, journal with three verdicts that no service has), the
configuration and the keys of service and validator, all generated. This made it, in a checkout of the commit:

    PYTHONPATH=.:tests/device python REPOSITORY/tests/device/core/former_state.py REPOSITORY/tests/device/core
"""

import asyncio
import json
import shutil
import sys
import tarfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path("/tmp/palm-former")
ARCHIVE = "former_state.tar.xz"
VERDICTS = 3


def main(out: Path) -> None:
    """Let a device of that commit serve in FOLDER, and keep what it leaves as `out`/ARCHIVE."""
    former: Any = import_module("whole_device")
    config: Any = import_module("device.config.config")
    pair: Any = import_module("link1.transport.pty_pair")
    desk: Any = import_module("link1.validator_desk")

    FOLDER.mkdir()
    device = former.make_device(FOLDER)
    with_cloud = replace(device.config, cloud=config.CloudSection("https://service.example", None))
    config.write_config(device.board.config_path, with_cloud)

    async def serve(port: str) -> list[dict[str, Any]]:
        said = []
        async with former.validator_at(port, device.board) as validator:
            await validator.wait_serving()
            for number in range(VERDICTS):
                validator.arm(20_000)
                device.show(former.pictures(occasion=9000 + number))
                answer = await validator.wait_for(desk.VerdictAnswered)
                said.append({"result": str(answer.verdict.result), "ref": answer.verdict_ref})
        return said

    with pair.PtyPair() as cable, device.running() as process:
        (FOLDER / "cable").symlink_to(cable.left)
        verdicts = asyncio.run(serve(cable.right))
        process.terminate()
        process.wait(20)
    board = device.board
    keys = {"service": board.service_key, "validator": board.validator_key, "root": board.root_key}
    told = {"verdicts": verdicts, "seeds": {name: key.seed.hex() for name, key in keys.items()}}
    (FOLDER / "told.json").write_text(json.dumps(told, indent=1))
    with tarfile.open(out / ARCHIVE, "w:xz") as archive:
        for name in ("state", "device.toml", "told.json"):
            archive.add(FOLDER / name, name)
    print(verdicts)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
