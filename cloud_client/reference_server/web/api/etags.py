"""If-None-Match, as RFC 9110 §13.1.2 has it."""

import re
from collections.abc import Iterable

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
# A list of §5.6.1.2: members that are left out are passed over, and one is there at least.
_LIST = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t]*(?:{_TAG})?)*+[ \t]*")
_TAGS = re.compile(_TAG)


def none_matches(etag: str, header: Iterable[str]) -> bool:
    """Whether the answer is to be sent: no tag of the header's values is that of ``etag``, compared weakly.

    ``*`` matches whatever there is. A header that cannot be read is no condition.
    """
    value = ",".join(header)
    if value.strip(" \t") == "*":
        return False
    if not _LIST.fullmatch(value):
        return True
    return etag.removeprefix("W/") not in {tag.removeprefix("W/") for tag in _TAGS.findall(value)}
