"""The published weights that find hands, as far as the configuration wants them."""

from models.errors import ModelsError
from models.hand_landmarks import HandLandmarks, installed_landmarks, weights_folder


def wanted_landmarks(*, wanted: bool) -> tuple[HandLandmarks | None, str]:
    """The installed weights, or why hands are found without them. `wanted`: `[model] hand_weights`."""
    if not wanted:
        return None, "[model] hand_weights is false"
    try:
        landmarks = installed_landmarks()
    except ModelsError as error:
        return None, str(error)
    return landmarks, "" if landmarks is not None else f"{weights_folder()} does not hold them"
