from pathlib import Path

import pytest

from device.camera.source import CameraSourceError, CameraUnavailable, SourceKind, open_camera, parse_source


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("/dev/video0", SourceKind.V4L2, "/dev/video0"),
        ("v4l2:by-id/usb-ACME_Cam-video-index0", SourceKind.V4L2, "/dev/v4l/by-id/usb-ACME_Cam-video-index0"),
        ("v4l2:by-path/pci-0000:00:14.0-usb-0:1:1.0-video-index0", SourceKind.V4L2, None),
        ("file:/srv/hands", SourceKind.FILE, "/srv/hands"),
        ("file:a:b.mp4", SourceKind.FILE, "a:b.mp4"),
    ],
)
def test_sources_the_configuration_may_name(text: str, kind: SourceKind, path: str | None) -> None:
    source = parse_source(text)
    assert source.kind is kind
    if path is not None:
        assert str(source.path) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "file:",
        "video0",
        "rtsp://host/stream",
        "v4l2:by-id/",
        "v4l2:by-id/../../sda",
        "v4l2:by-id/..",
        "v4l2:video0",
    ],
)
def test_other_words_are_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(CameraSourceError, match="expected a device node"):
        parse_source(text)


@pytest.mark.parametrize("fps", [0.0, -1.0, 5000.0, float("nan")])
def test_a_rate_outside_the_range_is_refused(fps: float, tmp_path: Path) -> None:
    with pytest.raises(CameraSourceError, match="fps"):
        open_camera(f"file:{tmp_path}", fps=fps)


def test_an_absent_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CameraUnavailable, match=r"absent.*put the file in place"):
        open_camera(f"file:{tmp_path}/nothing")


def test_a_file_that_the_system_cannot_look_for_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CameraUnavailable, match=r"correct \[camera\] source"):
        open_camera(f"file:{tmp_path}/{'x' * 300}")


def test_an_absent_camera_says_which_are_there() -> None:
    with pytest.raises(CameraUnavailable, match=r"absent; found: .*Plug the camera in"):
        open_camera("/dev/video-none")
    with pytest.raises(CameraUnavailable, match="absent; found:"):
        open_camera("v4l2:by-id/none")


def test_a_device_that_is_no_camera_is_named_so() -> None:
    with pytest.raises(CameraUnavailable, match="not a V4L2 camera"):
        open_camera("/dev/null")


def test_a_folder_below_dev_is_no_device_node() -> None:
    with pytest.raises(CameraUnavailable, match="not a device node"):
        open_camera("/dev/fd")
