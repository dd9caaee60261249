"""A virtual cable: two pseudo-terminals joined by a copying loop.

A program may open and close one of the paths any number of times. The other end then sees silence,
as on a UART or at a gadget tty; with `show_close` it sees a hang-up, as when a USB cable is pulled. What is
sent without a reader waits in the kernel's buffers, which are bounded: after that the port is full.

    with PtyPair() as pair:
        use(pair.left, pair.right)
"""

import contextlib
import errno
import os
import pty
import selectors
import tempfile
import threading
import tty
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

COPY_BYTES = 4_096
"""What a tty buffers at most in one direction, and so what one read can give."""
_ABSENT_POLL_S = 0.02
"""How often a side that no program has open is polled: the kernel has no event for it."""


class _Side:
    """One pty. `path` stays the same when the pty behind it is replaced."""

    def __init__(self, path: Path, keep_open: bool) -> None:
        self.path = path
        self._keep_open = keep_open
        self.master = -1
        self._slave = -1
        self.pending = b""
        self.seen_open = False
        self._make()

    def _make(self) -> None:
        self.master, slave = pty.openpty()
        tty.setraw(slave)
        os.set_blocking(self.master, False)
        fresh = self.path.with_suffix(".new")
        fresh.symlink_to(os.ttyname(slave))
        fresh.replace(self.path)
        if self._keep_open:
            self._slave = slave
        else:
            os.close(slave)

    def hang_up(self) -> None:
        """End the pty for the program that has it open; the path leads to a new pty at once."""
        os.close(self.master)
        self.pending = b""
        self.seen_open = False
        self._make()

    def close(self) -> None:
        for descriptor in (self.master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)

    def read(self) -> bytes | None:
        """What the user of this side has sent; empty when nothing, None when no program has it open."""
        try:
            data = os.read(self.master, COPY_BYTES)
        except BlockingIOError:
            self.seen_open = True
            return b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        self.seen_open = True
        return data

    def write_pending(self) -> None:
        """Give the user of this side what waits for it, as far as there is room."""
        if self.pending:
            with contextlib.suppress(BlockingIOError):
                self.pending = self.pending[os.write(self.master, self.pending) :]


class PtyPair:
    """Two joined ports at `left` and `right`, served by a thread until `close`."""

    def __init__(
        self,
        *,
        show_close: bool = False,
        directory: Path | None = None,
        carry: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """`carry` is given each piece that was sent and returns what arrives: a bad cable changes it."""
        self._carry = carry
        self._folder = Path(tempfile.mkdtemp(prefix="palm-link-", dir=directory))
        self._show_close = show_close
        self._sides = (
            _Side(self._folder / "device", keep_open=not show_close),
            _Side(self._folder / "validator", keep_open=not show_close),
        )
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="pty-pair", daemon=True)
        self._thread.start()

    @property
    def left(self) -> str:
        return str(self._sides[0].path)

    @property
    def right(self) -> str:
        return str(self._sides[1].path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both sides and remove their paths."""
        if not self._thread.is_alive():
            return
        os.write(self._stop_writer, b"x")
        self._thread.join()
        for side in self._sides:
            side.close()
            side.path.unlink(missing_ok=True)
        self._folder.rmdir()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def _copy(self) -> None:
        """Carry bytes until `close` asks for the end."""
        while True:
            absent = [self._serve(side, other) is None for side, other in self._both_ways()]
            with selectors.DefaultSelector() as selector:
                selector.register(self._stop_reader, selectors.EVENT_READ)
                for (side, other), closed in zip(self._both_ways(), absent, strict=True):
                    wanted = (0 if closed or other.pending else selectors.EVENT_READ) | (
                        selectors.EVENT_WRITE if side.pending and not closed else 0
                    )
                    if wanted:
                        selector.register(side.master, wanted)
                ready = selector.select(_ABSENT_POLL_S if any(absent) else None)
            if any(key.fd == self._stop_reader for key, _ in ready):
                return

    def _both_ways(self) -> tuple[tuple[_Side, _Side], tuple[_Side, _Side]]:
        left, right = self._sides
        return (left, right), (right, left)

    def _serve(self, side: _Side, other: _Side) -> bool | None:
        """Move what can be moved from `side` to `other`; None when no program has `side` open."""
        side.write_pending()
        if other.pending:
            return True
        data = side.read()
        if data is None:
            if side.seen_open:
                side.seen_open = False
                side.pending = b""
                if self._show_close and other.seen_open:
                    other.hang_up()
            return None
        other.pending = self._carry(data)
        other.write_pending()
        return True
