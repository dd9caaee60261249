"""The running palmd, and its gallery."""

from importlib.metadata import version

from device import APP_PACKAGE
from device.doctor.case import Case, Finding, fail, is_closed, not_checked, ok, skip, warn


def daemon(case: Case) -> Finding:
    """Is palmd running, is it this version, and does it serve?"""
    status, here = case.status, version(APP_PACKAGE)
    if "status" in case.closed:
        return not_checked(f"palmd is not asked: {case.status_problem}")
    if status is None:
        return fail(
            f"no palmd answers: {case.status_problem}",
            "systemctl start palmd; why it stopped: palmctl logs --unit palmd",
        )
    running = status.app.version
    if running != here:
        return warn(
            f"palmd runs version {running}, installed is {here}", "systemctl restart palmd palm-syncd"
        )
    if not status.serving:
        words = ", ".join(status.words)
        return fail(f"palmd {running} runs, but every verdict would abstain: {words}", "palmctl status")
    return ok(f"palmd {running} serves")


_SOON_S = 2 * 3600


def gallery(case: Case) -> Finding:
    """The gallery: how many templates, and how long it stays fresh."""
    config, status = case.settings, case.status
    if "status" in case.closed:
        return not_checked("palmd, which alone can open it, may not be asked by this user")
    if status is None:
        return _on_disk(case)
    gallery = status.gallery
    detail = f"{gallery.templates:,} templates, epoch {gallery.epoch} seq {gallery.seq}"
    network = "check palm-syncd and the network: palmctl logs --unit palm-syncd"
    todo = network if config.cloud else "check that the validator carries mail: palmctl status, line mail"
    if not gallery.fresh:
        return fail(f"{detail}, not fresh ({gallery.reason}): no one is recognised", todo)
    left_h = gallery.left_s / 3600
    if gallery.left_s < _SOON_S:
        return warn(f"{detail}, fresh for {left_h:.1f} h more only", todo)
    if gallery.templates == 0:
        return warn(f"{detail}: it is empty, so no one is recognised", "enrol a person")
    return ok(f"{detail}, fresh for {left_h:.1f} h")


def _on_disk(case: Case) -> Finding:
    """What the disk shows while palmd does not run; only palmd can open the gallery."""
    folder = case.settings.gallery_dir
    if is_closed(folder):
        return not_checked(f"{folder} may not be read by this user")
    files = [path for path in folder.glob("*") if path.is_file()]
    if not files:
        return skip("none is here yet: it arrives when palmd and its carrier run", "systemctl start palmd")
    newest_s = max(path.stat().st_mtime for path in files)
    hours = max(0.0, case.clock.wall_ms() / 1000 - newest_s) / 3600
    return skip(f"written {hours:.1f} h ago; its age is known while palmd runs", "systemctl start palmd")
