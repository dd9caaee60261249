"""What tests of the device with a reference server begin with."""

from collections.abc import Iterator

import pytest

from tests.device.reference_cloud import Server, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running
