"""The model and the weights that find hands."""

import time

from device.doctor.case import Case, Finding, fail, not_checked, ok, skip, warn
from device.vision.hand_weights import wanted_landmarks
from link1.errors import is_not_permitted
from models.errors import ModelsError
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.pad_network import open_pad_network


def model(case: Case) -> Finding:
    """The model: every file matches its manifest, and a known palm gives the known answer."""
    started_s = time.monotonic()
    try:
        manifest = load_manifest(case.settings.model.dir or shipped_model_dir())
        open_embedder(manifest)
    except ModelsError as error:
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
    running = case.status.model_id if case.status else manifest.model_id
    if running != manifest.model_id:
        return fail(f"palmd runs {running}, installed is {manifest.model_id}", "systemctl restart palmd")
    return ok(f"{manifest.model_id} gives the known answer ({took_ms} ms with loading){network_id}")


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
