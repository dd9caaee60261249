"""The back office's side of the mail: between the partner API and a validator (partner API, Mailman).

It fetches what waits in a device's inbox, hands it to the validator's `ValidatorMail`, and returns what was
collected from the outbox. It can open nothing, and decides nothing but when.
"""

import asyncio
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import httpx

from link1 import members
from link1.bodies import MAX_RECORD_BYTES, MailState
from link1.canonical import JsonObject, canonical_bytes, read_strict, read_with_fractions
from link1.errors import FormatError
from link1.validator.mail import InboxSettled, MailEvent, OutboxCollected, ValidatorMail

POLL_S: Final = 1.0
"""How often the inbox is asked for; a webhook would say sooner."""
MAX_SUBMITTED: Final = 32
MAX_WAITING: Final = 256
"""Outbox records held while the service is away; the device has them all the same."""
COLLECT_AGAIN_S: Final = 900.0
"""How often at most the outbox is collected again because something in it was no record."""
_TIMEOUT_S: Final = 20.0
RETRY_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 12 * 1024 * 1024

Report = Callable[[JsonObject], None]


@dataclass(frozen=True, slots=True)
class OfficeAccess:
    """Where the service is, and the key to it (scopes devices:read and devices:write)."""

    url: str
    api_key: str = field(repr=False)


class MailCarrier:
    """Carries for the one device at the validator's cable."""

    def __init__(
        self,
        access: OfficeAccess,
        mail: ValidatorMail,
        *,
        report: Report,
        kick: Callable[[], None],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`kick`: something was offered, so the cable should be looked at. `transport`: None for HTTP."""
        self._transport = transport
        self._access = access
        self._mail = mail
        self._report = report
        self._kick = kick
        self._device_id: str | None = None
        self._outgoing: deque[tuple[int, JsonObject]] = deque()
        self._news = asyncio.Event()
        self._stopped_at: int | None = None
        self._trouble = ""
        self._spoilt = False
        self._left_out = False
        """Records were collected that found no room: they are collected again once those before are gone."""
        self._collect_again_from_s = 0.0

    def device_met(self, device_id: str) -> None:
        """A device has proven who it is."""
        self._stopped_at = None  # by another device, or under other keys; the same one refuses it again
        if device_id != self._device_id:
            self._device_id = device_id
            self._outgoing.clear()
        self._news.set()

    def follow(self, event: MailEvent) -> None:
        """What happened at the cable."""
        match event:
            case InboxSettled(seq, state, applied_seq, code):
                line: JsonObject = {"event": "mail_in", "seq": seq, "state": state.value}
                self._report(line | {"applied_seq": applied_seq} | ({"code": code} if code else {}))
                self._stopped_at = seq if state is MailState.REFUSED else None
                self._news.set()
            case OutboxCollected(seq, data):
                self._collected(seq, data)
            case _:
                self._report({"event": "mail_unsupported"})

    def _collected(self, seq: int, data: bytes) -> None:
        try:
            record = read_strict(data, max_bytes=MAX_RECORD_BYTES)
        except FormatError as error:
            self._not_taken(seq, str(error))
            return
        if len(self._outgoing) < MAX_WAITING:
            self._outgoing.append((seq, record))
        else:
            self._left_out = True  # the device keeps everything
        self._news.set()

    def _not_taken(self, seq: int, reason: str) -> None:
        """Chunks are not signed: it may have been forged at the cable in the place of the device's record."""
        self._report({"event": "mail_error", "detail": f"outbox record {seq} is no record: {reason}"})
        self._spoilt = True

    def _collect_again(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._spoilt and now_s >= self._collect_again_from_s:
            self._spoilt, self._collect_again_from_s = False, now_s + COLLECT_AGAIN_S
            self._mail.pull_again()
            self._kick()

    async def run(self) -> None:
        """Until cancelled."""
        headers = {"Authorization": f"Bearer {self._access.api_key}"}
        async with httpx.AsyncClient(
            base_url=self._access.url, headers=headers, timeout=_TIMEOUT_S, transport=self._transport
        ) as client:
            while True:
                self._news.clear()  # before looking: what comes while we look sets it again
                self._collect_again()
                pause_s = POLL_S
                if self._device_id is not None:
                    try:
                        await self._return_outbox(client, self._device_id)
                        await self._fetch_inbox(client, self._device_id)
                        self._trouble = ""
                    # httpx lets a fault of TLS, or of a redirection that it need not follow, through.
                    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, _Answered, FormatError) as error:
                        self._complain(str(error) or type(error).__name__)
                        pause_s = RETRY_S
                await self._rest(pause_s)

    async def _rest(self, pause_s: float) -> None:
        """Until there is news, or for `pause_s`; after trouble always so long."""
        if pause_s > POLL_S:
            await asyncio.sleep(pause_s)
            return
        try:
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        except TimeoutError:
            return

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._report({"event": "mail_error", "detail": trouble})
        self._trouble = trouble

    async def _fetch_inbox(self, client: httpx.AsyncClient, device_id: str) -> None:
        """Offer what the device lacks; where it refused a record, see whether there is another one by now."""
        after_seq = self._mail.last_offered_seq
        if after_seq is None:
            return  # its signed status, which carries the marks of its inbox, has not come yet
        limit = self._mail.room
        if self._stopped_at is not None:
            after_seq, limit = self._stopped_at - 1, 1
        if limit == 0:
            return
        answer = await client.get(
            f"/v1/devices/{device_id}/inbox", params={"after_seq": after_seq, "limit": limit}
        )
        inbox = _expect_ok(answer)
        for record in members.array(inbox, "data", 0, limit):
            post = members.nested(members.nested({"record": record}, "record"), "post")
            self._mail.offer(members.integer(post, "seq", 1), canonical_bytes(record))
        self._kick()

    async def _return_outbox(self, client: httpx.AsyncClient, device_id: str) -> None:
        most = MAX_SUBMITTED
        while self._outgoing:
            batch = list(self._outgoing)[:most]
            answer = await client.post(
                f"/v1/devices/{device_id}/outbox",
                json={"records": [record for _, record in batch]},
                headers={"Idempotency-Key": secrets.token_hex(16)},
            )
            refused = answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
            if refused and len(batch) > 1:
                most = 1  # which of them is no record
                continue
            result = {} if refused else _expect_ok(answer)
            for sent in batch:
                if self._outgoing and self._outgoing[0] is sent:  # else the queue was emptied meanwhile
                    self._outgoing.popleft()
            if refused:
                self._not_taken(batch[0][0], "the service answers 422")
                continue
            rejected = members.array(result, "rejected", 0, MAX_SUBMITTED)
            self._spoilt = self._spoilt or bool(rejected)
            self._report(
                {
                    "event": "mail_out",
                    "seqs": [seq for seq, _ in batch],
                    "acked_upto_seq": members.integer(result, "acked_upto_seq"),
                    "rejected": rejected,
                }
            )
        if self._left_out:
            self._left_out = False
            self._mail.pull_again()
            self._kick()


class _Answered(Exception):
    """The service answered with something else than 200."""


def _expect_ok(answer: httpx.Response) -> JsonObject:
    if answer.status_code == HTTPStatus.OK:
        return read_with_fractions(answer.content, max_bytes=_MAX_ANSWER_BYTES)
    try:
        code = answer.json().get("code")
    except (ValueError, AttributeError):
        code = None
    raise _Answered(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {code or ''}")
