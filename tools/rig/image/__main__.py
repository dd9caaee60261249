"""Make an image for a card.

    python -m tools.rig.image --deb build/deb/palm-access_0.1.0-1_amd64.deb [--arch amd64|arm64] [--out FILE]

Exit codes: 0 made, 1 not made, 2 wrong usage.
"""

import argparse
import sys
from pathlib import Path

from tools.rig.hil.errors import HilError
from tools.rig.image.build import ARCHITECTURES, build_image

CACHE = Path("build/image")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.rig.image", description=__doc__)
    parser.add_argument("--deb", type=Path, required=True, help="The built package, of this architecture.")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="amd64")
    parser.add_argument("--out", type=Path, help="Default: build/image/palm-access-ARCH.img")
    chosen = parser.parse_args()
    if not chosen.deb.is_file():
        parser.error(f"{chosen.deb} does not exist; make it with: make deb")
    out = chosen.out or CACHE / f"palm-access-{chosen.arch}.img"
    try:
        build_image(chosen.deb, chosen.arch, out, CACHE, tell)
    except HilError as error:
        tell(str(error))
        return 1
    tell(f"made {out}, {out.stat().st_size >> 20} MiB")
    return 0


def tell(text: str) -> None:
    print(f"image: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
