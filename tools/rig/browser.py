"""A headless Chromium, driven over its DevTools pipe: no driver program and no websocket needed.

Only what pages on this machine are looked at with: open, read, click, type, photograph.
"""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ANSWERS_WITHIN_S: Final = 30.0
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

_KEYS: Final = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Backspace": (8, ""),
    "PageDown": (34, ""),
}
"""Virtual key code and the text that it types, of keys that are not one character."""


class BrowserError(Exception):
    """The browser refused a command, or did not answer."""


def find_chromium() -> str | None:
    """Where the browser is, None when there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One tab; coordinates and sizes in CSS pixels."""

    def __init__(self, pipe: "_Pipe", session_id: str) -> None:
        self._pipe = pipe
        self._session_id = session_id
        self.call("Page.enable")
        self.call("Log.enable")
        self.call("Runtime.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command. BrowserError when it fails."""
        return self._pipe.call(method, params, self._session_id)

    def show(self, *, width: int, height: int, dark: bool = False, script: bool = True) -> None:
        """Size of the window, colour scheme, and whether pages may run script."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self._pipe.events.clear()
        self.call("Page.navigate", url=url)
        self._pipe.wait_for_page()

    def submit(self, form: str) -> None:
        """Press a form's button and wait for the page that follows."""
        self._pipe.events.clear()
        self.value(f"document.querySelector({json.dumps(form)}).requestSubmit()")
        self._pipe.wait_for_page()

    def type_into(self, field: str, text: str) -> None:
        """Type text into the field that a selector finds."""
        self.value(f"document.querySelector({json.dumps(field)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """One key of a keyboard, by its name in KeyboardEvent.key (UI Events)."""
        code, typed = _KEYS[key] if key in _KEYS else (ord(key.upper()), key)
        named = {"key": key, "windowsVirtualKeyCode": code, "text": typed}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def focused(self) -> tuple[str, str]:
        """Role and name of the element with the focus, as a screen reader takes them."""
        found = self.call("Runtime.evaluate", expression="document.activeElement")["result"]
        nodes = self.call("Accessibility.getPartialAXTree", objectId=found["objectId"], fetchRelatives=False)
        node = nodes["nodes"][0]
        return node["role"]["value"], node.get("name", {}).get("value", "")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"the page could not evaluate {expression!r}")
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """What the browser has logged as an error since the last page was opened (blocked by CSP, 404, …)."""
        return [
            event["params"]["entry"]["text"]
            for event in self._pipe.events
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
        ]

    def photograph(self) -> bytes:
        """A PNG of the window."""
        shot = self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])


class _Pipe:
    """DevTools messages: JSON, each ended by a zero byte."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, params: dict[str, Any], session_id: str | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session_id is not None:
            message["sessionId"] = session_id
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline_s = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            answer = self._next(deadline_s)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for_page(self) -> None:
        """Until a page has begun and loaded since the events were cleared.

        The page before may still have been loading then: its own load event is not the one.
        """
        deadline_s = time.monotonic() + ANSWERS_WITHIN_S
        looked_at, begun = 0, False
        while True:
            while looked_at == len(self.events):
                self.events.append(self._next(deadline_s))
            event = self.events[looked_at]
            looked_at += 1
            if event["method"] == "Page.frameNavigated":
                begun = begun or "parentId" not in event["params"]["frame"]
            elif begun and event["method"] == "Page.loadEventFired":
                return

    def _next(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline_s - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError("the browser does not answer")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


@contextmanager
def browsing(chromium: str) -> Iterator[Tab]:
    """A browser with an empty profile and one tab, gone at the end."""
    commands_in, commands_out = os.pipe()
    answers_in, answers_out = os.pipe()
    # The browser reads commands from descriptor 3 and writes answers to 4.
    script = f'exec 3<&{commands_in} 4>&{answers_out}; exec "$0" "$@"'
    with tempfile.TemporaryDirectory(prefix="palm-browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", script, chromium, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands_in, answers_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        try:
            pipe = _Pipe(commands_out, answers_in)
            target = pipe.call("Target.createTarget", {"url": "about:blank"})["targetId"]
            attached = pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})
            yield Tab(pipe, attached["sessionId"])
        finally:
            os.close(commands_out)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(answers_in)


def save(png: bytes, path: Path) -> None:
    """Write a photograph in 256 colours, which is all that a page like ours has need of."""
    import cv2
    import numpy as np

    pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise BrowserError("the photograph is no PNG")
    flat = pixels.reshape(-1, 3).astype(np.int32)
    codes = flat[:, 0] << 16 | flat[:, 1] << 8 | flat[:, 2]
    colours, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    every = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1)
    kept = every[np.argsort(-counts)[:256]]
    # What is not among the most frequent becomes the nearest of those.
    nearest = ((every[:, None, :] - kept[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    rows = nearest[places].reshape(pixels.shape[:2]).astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    height, width = rows.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + _chunk(b"PLTE", kept.astype(np.uint8).tobytes())
        + _chunk(b"IDAT", zlib.compress(lines, 9))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
