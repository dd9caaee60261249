"""The validator kit on a machine with the package installed, for rigs: the package leaves the kit out."""

import shutil
from pathlib import Path
from typing import Final

PALMCTL: Final = Path("/srv/kit/palmctl")
"""`palmctl dbd …` and `palmctl link …` on that machine."""
_SOURCE: Final = Path(__file__).parents[3]
_FOLDERS: Final = ("link1/validator", "tools/kit")
_SCRIPT: Final = f"""\
#!/opt/palm-access/current/bin/python -I
import sys
import link1
import tools

for package in link1, tools:
    package.__path__.append(f"{PALMCTL.parent}/{{package.__name__}}")
from tools.kit.commands.dbd import dbd
from tools.kit.commands.link import link

{{"dbd": dbd, "link": link}}[sys.argv.pop(1)]()
"""


def copy_kit(root: Path) -> None:
    """Put the kit below `root`, the root directory of the machine."""
    script = root / PALMCTL.relative_to("/")
    for folder in _FOLDERS:
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_SOURCE / folder, script.parent / folder, ignore=leave_out, dirs_exist_ok=True)
    script.write_text(_SCRIPT, encoding="ascii")
    script.chmod(0o755)
