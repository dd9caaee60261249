"""The network between a client and the service: delays, losses on either way, refusals, and a carrier that
lies about the gallery (withholds, replays), for which it need not break TLS: palm-syncd is not trusted by the
core."""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httpx

from tools.rig.simulation.loop import SimulatedLoop, SimulatedProcess, called_in
from tools.rig.simulation.service import Answered, RunningService

GALLERY: Final = "/v1/gallery/"
DELTAS: Final = "/v1/gallery/deltas"
_KEPT_ANSWERS: Final = 12


@dataclass
class NetworkTroubles:
    """Chances for each request, in 0..1; `late_s` is the most that either way takes."""

    down: bool = False
    lose_request: float = 0.0
    lose_answer: float = 0.0
    refuse: float = 0.0
    late_s: float = 0.02
    replay: float = 0.0
    """An answer about the gallery is one that was given before."""
    strip: bool = False
    """An answer with deltas comes without them, under its head: only the head is signed."""
    withhold: bool = False
    """No answer about the gallery that is newer than the first one withheld gets through: a freeze."""


@dataclass
class Network:
    """`running` gives the service's process and program; None while it is down. `asked` gets every request,
    `delivered` what the client got for it."""

    loop: SimulatedLoop
    chance: random.Random
    running: Callable[[], tuple[SimulatedProcess, RunningService] | None]
    asked: Callable[[httpx.Request], None]
    delivered: Callable[[httpx.Request, int, bytes], None]
    troubles: NetworkTroubles = field(default_factory=NetworkTroubles)
    _given: dict[str, deque[Answered]] = field(default_factory=dict)

    async def exchange(self, request: httpx.Request, body: bytes) -> httpx.Response:
        """One request of a client. Raises what httpx raises when there is no answer."""
        troubles, chance = self.troubles, self.chance
        self.asked(request)
        await asyncio.sleep(0.002 + chance.random() * troubles.late_s)
        if troubles.down or self.running() is None:
            raise httpx.ConnectError("no route to the simulated service", request=request)
        read_s = request.extensions.get("timeout", {}).get("read") or 60.0
        try:
            async with asyncio.timeout(read_s):
                if chance.random() < troubles.lose_request:
                    await asyncio.Event().wait()
                if chance.random() < troubles.refuse:
                    return _response(503, [(b"content-type", b"text/html")], b"<h1>busy</h1>")
                answer = await self._at_the_service(request, body)
                if chance.random() < troubles.lose_answer or self.troubles.down:
                    await asyncio.Event().wait()
                await asyncio.sleep(0.002 + chance.random() * self.troubles.late_s)
        except TimeoutError:
            raise httpx.ReadTimeout("the simulated service did not answer in time", request=request) from None
        answer = self._lie(request, answer)
        self.delivered(request, answer[0], answer[2])
        return _response(*answer)

    async def _at_the_service(self, request: httpx.Request, body: bytes) -> Answered:
        running = self.running()
        if running is None:
            raise httpx.ConnectError("the simulated service is down", request=request)
        process, program = running
        return await called_in(
            self.loop, process, lambda: program.answer(request, body), httpx.ReadError("gone")
        )

    def _lie(self, request: httpx.Request, answer: Answered) -> Answered:
        if not request.url.path.startswith(GALLERY) or answer[0] != 200:
            return answer
        if self.troubles.strip and request.url.path != DELTAS:
            return 503, [(b"content-type", b"text/html")], b"<h1>busy</h1>"
        given = self._given.setdefault(request.url.path, deque(maxlen=_KEPT_ANSWERS))
        if given and (self.troubles.withhold or self.chance.random() < self.troubles.replay):
            return given[-1 if self.troubles.withhold else self.chance.randrange(len(given))]
        given.append(answer)
        if self.troubles.strip and request.url.path == DELTAS:
            return answer[0], answer[1], json.dumps(json.loads(answer[2]) | {"data": []}).encode()
        return answer


def _response(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(body))


class NetworkTransport(httpx.AsyncBaseTransport):
    """A client's way to the simulated network."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._network.exchange(request, await request.aread())
