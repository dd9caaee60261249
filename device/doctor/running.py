"""The running palmd, its gallery, and its networks."""

import time
from importlib.metadata import version

from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.doctor.case import Case, Finding, fail, is_closed, not_checked, ok, skip, warn
from device.health import NOT_SERVING
from device.updates.models import model_id_of
from device.updates.store import UpdateStore
from device.vision.hand_weights import wanted_landmarks
from link1.errors import is_not_permitted
from models.errors import ModelsError
from models.manifest import ModelManifest, load_manifest, open_embedder, shipped_model_dir
from models.pad_network import open_pad_network


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
        words = ", ".join(word for word in status.words if word in NOT_SERVING)
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
        opened = gallery.reason != "absent"  # what could not be opened is in the health
        return fail(
            f"{detail}, not fresh ({gallery.reason}): no one is recognised",
            todo if opened else "palmctl status",
        )
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


def model(case: Case) -> Finding:
    """The model: every file matches its manifest, and a known palm gives the known answer."""
    started_s = time.monotonic()
    running = case.status.model_id if case.status else None
    try:
        manifest = _manifest_in_force(case.settings, running)
        open_embedder(manifest)
    except (ModelsError, PermissionError) as error:
        if is_not_permitted(error):
            return not_checked("the model's folder may not be read by this user")
        return fail(str(error), "install the package again, or correct [model] dir")
    network_id = ""
    if (folder := case.settings.liveness.model_dir) is not None:
        try:
            network = open_pad_network(folder, case.settings.camera.look)
            network_id = f", with the liveness network {network.model_id}"
        except ModelsError as error:
            if is_not_permitted(error):
                return not_checked(f"{folder} may not be read by this user")
            return fail(str(error), "correct [liveness] model_dir, or install the network again")
    took_ms = round((time.monotonic() - started_s) * 1000)
    if running not in (None, manifest.model_id):
        return fail(f"palmd runs {running}, installed is {manifest.model_id}", "systemctl restart palmd")
    return ok(f"{manifest.model_id} gives the known answer ({took_ms} ms with loading){network_id}")


def _manifest_in_force(settings: DeviceConfig, running: str | None) -> ModelManifest:
    """Of the model with the model_id that runs, wherever it came from; else of the configured or shipped one.

    Raises ModelsError, PermissionError."""
    installed = load_manifest(settings.model.dir or shipped_model_dir())
    if settings.model.dir is not None or running in (None, installed.model_id):
        return installed
    folders = UpdateStore(settings.device.state_dir).model_folders()
    found = next((folder for folder in folders if model_id_of(folder) == running), None)
    return installed if found is None else load_manifest(found)


def hands(case: Case) -> Finding:
    """The published weights that find hands: installed, unaltered, and giving their known answer."""
    wanted = case.settings.model.hand_weights
    landmarks, why = wanted_landmarks(wanted=wanted)
    if landmarks is not None:
        return ok("found by the published weights, which give the known answer, and by own networks")
    if not wanted:
        return skip(f"found by this device's own networks alone: {why}")
    return warn(
        f"found by this device's own networks alone, which miss more hands in a real room: {why}",
        "install the package again (in a checkout: make hand-weights), or set [model] hand_weights = false",
    )
