"""What an error says, and what it comes from."""

import errno

import pytest

from link1.errors import FormatError, is_not_permitted, reason_of


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("Access denied (insufficient permissions)"), "Access denied (insufficient permissions)"),
        (OSError(errno.ENOENT, "No such file or directory", "/x"), "No such file or directory"),
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_an_error_keeps_its_text(error: OSError, words: str) -> None:
    assert reason_of(error) == words


def test_who_may_not_is_told_from_the_cause() -> None:
    try:
        try:
            raise PermissionError(errno.EACCES, "Permission denied")
        except OSError as error:
            raise FormatError("a file") from error
    except FormatError as error:
        assert is_not_permitted(error)
    assert not is_not_permitted(FormatError("a file"))
