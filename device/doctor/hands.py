"""The published weights that find hands: installed, unaltered, and giving their known answer."""

from device.doctor.case import Case
from device.doctor.finding import Finding, ok, skip, warn
from device.vision.hand_weights import wanted_landmarks

NAME = "hands"


def check(case: Case) -> Finding:
    wanted = case.settings.model.hand_weights
    landmarks, why = wanted_landmarks(wanted=wanted)
    if landmarks is not None:
        return ok(NAME, "found by the published weights, which give the known answer, and by own networks")
    if not wanted:
        return skip(NAME, f"found by this device's own networks alone: {why}")
    return warn(
        NAME,
        f"found by this device's own networks alone, which miss more hands in a real room: {why}",
        "install the package again (in a checkout: make hand-weights), or set [model] hand_weights = false",
    )
