"""Rates over the last minute from a row of statuses, and the screen that `palmctl status --watch` shows."""

from collections import deque
from dataclasses import dataclass

import click

from device.values.status import CoreStatus
from link1.canonical import JsonObject
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Over the window, or as long as there are statuses: None while there is only one."""

    passages_min: float | None
    frames_s: float | None
    examined_s: float | None


class Recent:
    """The statuses of the last minute, each with when it was read (monotonic seconds)."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, int, int]]] = deque()

    def add(self, at_s: float, status: CoreStatus) -> Rates:
        """Rates with this one as the newest. A restarted daemon begins a new window."""
        now = status.verdict_seq, status.camera.frames, status.camera.examined
        if self._seen and (now[0] < self._seen[-1][1][0] or now[1] < self._seen[-1][1][1]):
            self._seen.clear()
        self._seen.append((at_s, now))
        while at_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        span_s = at_s - since_s
        if span_s <= 0:
            return Rates(None, None, None)
        return Rates(
            (now[0] - before[0]) * 60 / span_s, (now[1] - before[1]) / span_s, (now[2] - before[2]) / span_s
        )


def summary(status: CoreStatus, rates: Rates) -> JsonObject:
    """What one line of the watch says, for programs."""
    latency = status.latency
    return {
        "serving": status.serving,
        "passages_min": _rounded(rates.passages_min),
        "p50_ms": _ms(latency.p50_us),
        "p99_ms": _ms(latency.p99_us),
        "frames_s": _rounded(rates.frames_s),
        "examined_s": _rounded(rates.examined_s),
        "camera": status.camera.condition,
        "cable": status.cable.state,
        "cloud_online": status.cloud.online,
        "gallery_templates": status.gallery.templates,
        "gallery_fresh": status.gallery.fresh,
        "gallery_left_s": status.gallery.left_s,
        "verdict_seq": status.verdict_seq,
        "uploads_waiting": status.uploads_waiting,
        "health": list(status.words),
    }


def plain_line(clock: str, told: JsonObject) -> str:
    """One line for a log or a pipe."""
    return (
        f"{clock} serving {'yes' if told['serving'] else 'no'}  verdicts {told['verdict_seq']}  "
        f"passages/min {_number(told['passages_min'])}  p50 {_number(told['p50_ms'])} ms  "
        f"p99 {_number(told['p99_ms'])} ms  frames/s {_number(told['frames_s'])}  camera {told['camera']}  "
        f"cable {told['cable']}  gallery {_gallery(told)}  {' '.join(told['health']) or 'healthy'}"
    )


def screen(told: JsonObject) -> list[str]:
    """The lines below the head of a live screen."""

    def mark(good: bool, text: str) -> str:
        return click.style(text, fg="green" if good else "red")

    online = "online" if told["cloud_online"] else "offline"
    serving = _("yes") if told["serving"] else _("no: every verdict would abstain")
    frames = _(f"{_number(told['frames_s'])} frames/s, {_number(told['examined_s'])} examined")
    rows = (
        (_("serving"), mark(told["serving"], serving)),
        (
            _("passages"),
            _(f"{_number(told['passages_min'])} a minute, {told['verdict_seq']} verdicts in all"),
        ),
        (_("latency"), f"p50 {_number(told['p50_ms'])} ms, p99 {_number(told['p99_ms'])} ms"),
        (_("camera"), f"{mark(told['camera'] == 'ok', told['camera'])}, {frames}"),
        (_("cable"), mark(told["cable"] == "up", told["cable"])),
        (_("gallery"), mark(told["gallery_fresh"], _(_gallery(told)))),
        (_("cloud"), f"{online}, " + _(f"{told['uploads_waiting']} items to upload")),
    )
    return [f"  {name:<10} {text}" for name, text in rows]


def _gallery(told: JsonObject) -> str:
    if not told["gallery_fresh"]:
        return marked(f"{told['gallery_templates']} templates, not fresh")
    return marked(f"{told['gallery_templates']} templates, fresh for {told['gallery_left_s'] / 3600:.1f} h")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _ms(us: int | None) -> float | None:
    return None if us is None else round(us / 1000, 1)
