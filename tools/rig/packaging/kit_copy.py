"""The validator kit on a machine with the package installed, for rigs: the package leaves the kit out."""

import shutil
from pathlib import Path
from typing import Final

PALMCTL: Final = Path("/srv/kit/palmctl")
"""`palmctl dbd …` and `palmctl link …` on that machine."""
_KIT: Final = Path(__file__).parents[2] / "kit"
_SCRIPT: Final = f"""\
#!/opt/palm-access/current/bin/python -I
import sys
import tools

tools.__path__.append("{PALMCTL.parent}/tools")
from tools.kit.commands.dbd import dbd
from tools.kit.commands.link import link

{{"dbd": dbd, "link": link}}[sys.argv.pop(1)]()
"""


def copy_kit(root: Path) -> None:
    """Put the kit below `root`, the root directory of the machine."""
    script = root / PALMCTL.relative_to("/")
    shutil.copytree(
        _KIT, script.parent / "tools/kit", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    script.write_text(_SCRIPT, encoding="ascii")
    script.chmod(0o755)
