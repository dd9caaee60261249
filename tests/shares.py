"""What `make test` takes a share of; `make test-long` runs the whole."""

import pytest


def share_of(name: str, share: int, whole: int) -> pytest.MarkDecorator:
    """The parameter `name` of a test that goes through so many people, captures or steps."""
    return pytest.mark.parametrize(
        name, [pytest.param(share, id="share"), pytest.param(whole, id="whole", marks=pytest.mark.long)]
    )
