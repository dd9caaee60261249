from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_client.server.server_database import new_database
from tests.cloud_client.server.server_harness import Cloud, Partner, SimDevice, Tenant
from tests.cloud_client.server.server_process import Running, start
from tests.cloud_client.server.simulated_site import SimulatedSite


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """One server for all tests: each has a separate tenant in it, and its clock only goes forward."""
    cloud = Cloud(tmp_path_factory.mktemp("cloud"))
    yield cloud
    cloud.close()


@pytest.fixture
def own_cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A separate server, for tests that look at everything in it."""
    cloud = Cloud(tmp_path / "data")
    yield cloud
    cloud.close()


@pytest.fixture
def tenant(cloud: Cloud) -> Tenant:
    return cloud.new_tenant()


@pytest.fixture
def partner(tenant: Tenant) -> Partner:
    return tenant.partner()


@pytest.fixture
def device(tenant: Tenant) -> SimDevice:
    return tenant.device()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with start(tmp_path / "data", tmp_path / "server.log", new_database()) as server:
        yield server


@pytest.fixture
def site(running: Running, tmp_path: Path) -> Iterator[SimulatedSite]:
    site = SimulatedSite(running, tmp_path / "sim")
    site.done(*site.gate_words("gate-1"))
    with site.office:
        yield site
