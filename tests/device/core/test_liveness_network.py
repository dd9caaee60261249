"""`[liveness] model_dir`: an operator's network decides with the built-in cues, or nobody is served."""

import asyncio
from pathlib import Path

import pytest

from link1.objects import Verdict, VerdictResult
from link1.validator.desk import VerdictAnswered
from link1.validator.events import DeviceProven
from tests.device.whole_device import Device, make_device, pictures, until, validator_at
from tests.models.onnx_bytes import write_pad_folder
from tools.kit.pty_pair import PtyPair


def answered(device: Device) -> tuple[Verdict, dict[str, str]]:
    """What a known palm gets, and the health while it does."""

    async def story(port: str) -> tuple[Verdict, dict[str, str]]:
        async with validator_at(port, device.board) as validator:
            await validator.wait_for(DeviceProven)
            await until(lambda: "CAMERA_FAULT" not in device.health())
            health = await asyncio.to_thread(device.health)
            validator.arm(20_000)
            with device.hand(pictures()):
                return (await validator.wait_for(VerdictAnswered)).verdict, health

    with PtyPair() as pair, device.running():
        (device.folder / "cable").symlink_to(pair.left)
        return asyncio.run(story(pair.right))


@pytest.mark.parametrize(
    ("mean", "result"), [(20.0, VerdictResult.MATCH), (250.0, VerdictResult.SPOOF)], ids=["alive", "dead"]
)
def test_a_network_of_ones_own_decides_too(tmp_path: Path, mean: float, result: VerdictResult) -> None:
    network = write_pad_folder(tmp_path / "network", input={"mean": [mean]})
    verdict, health = answered(make_device(tmp_path, liveness_dir=network))
    assert "MODEL_FAULT" not in health
    assert verdict.result is result
    assert verdict.pad.mech.endswith("+net-bright-1")
    assert verdict.pad.res == ("pass" if result is VerdictResult.MATCH else "fail")


def test_a_network_for_near_infrared_speaks_where_the_driver_gives_three_channels(tmp_path: Path) -> None:
    network = write_pad_folder(tmp_path / "network", look="nir", input={"mean": [20.0]})
    verdict, _ = answered(make_device(tmp_path, liveness_dir=network, look="nir"))
    assert verdict.result is VerdictResult.MATCH
    assert verdict.pad.mech.endswith("+net-bright-1")
    assert "tint" not in verdict.pad.mech


def test_a_spoilt_network_takes_recognition_away(tmp_path: Path) -> None:
    network = write_pad_folder(tmp_path / "network")
    (network / "pad.onnx").write_bytes(b"\0" + (network / "pad.onnx").read_bytes()[1:])
    verdict, health = answered(make_device(tmp_path, liveness_dir=network))
    assert health["MODEL_FAULT"].startswith("[liveness] model_dir: ")
    assert "is not the file its manifest names" in health["MODEL_FAULT"]
    assert verdict.result is VerdictResult.NOT_READY
