"""The service's configuration decides, so its thresholds must be those that the model was scored at."""

from dataclasses import asdict

from cloud_client.reference_server.domain.devices.config import DEFAULT_THRESHOLDS
from models.manifest import load_manifest, shipped_model_dir


def test_the_reference_server_serves_the_shipped_model_s_thresholds() -> None:
    assert asdict(load_manifest(shipped_model_dir()).thresholds) == DEFAULT_THRESHOLDS
