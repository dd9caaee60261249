"""docs/explanation/PRIVACY.md: what it says about pictures, and that the tests it names are there."""

import re

from tests import REPOSITORY
from tests.docs.page_commands import DOCS

PAGE = (DOCS / "explanation/PRIVACY.md").read_text(encoding="utf-8")
_WRITES_PICTURES = re.compile(r"\b(imwrite|imencode|VideoWriter(?!\.fourcc)|tofile)\b")


def test_the_preview_alone_makes_a_picture_of_a_frame() -> None:
    """What runs on a device or at the service; training, plots and the virtual camera are neither."""
    running = [
        path
        for package in ("device", "gallery", "link1", "cloud_client")
        for path in (REPOSITORY / package).rglob("*.py")
    ]
    recognising = [
        path for path in (REPOSITORY / "models").glob("*.py") if not path.stem.startswith("evaluat")
    ]
    found = {
        str(path.relative_to(REPOSITORY))
        for path in (*running, *recognising)
        if _WRITES_PICTURES.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"device/enrolment/preview.py"}


def test_every_proof_that_is_named_is_there() -> None:
    named = re.findall(r"\*(tests/[^*]+)\*", PAGE)
    assert len(named) > 5
    for name in named:
        assert (REPOSITORY / name).exists(), name
