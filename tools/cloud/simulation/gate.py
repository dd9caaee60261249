"""A simulated gate: registration, gallery, verdicts, enrolments, reports and wipe, by the device's own parts.

No camera and no palm: a command says who stands at the gate. What follows is a device's: the gallery is
verified and followed, a person who is not in it (or is suspended) is a stranger, verdicts are numbered,
chained and kept until the service has them, and a revoked gate destroys what it has and acknowledges it.
"""

import asyncio
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np

from cloud_client.client import Answer, CloudClient, ServerAddress
from cloud_client.contract import MAX_BATCH_ITEMS, ServiceCode
from cloud_client.errors import CloudProblem
from device.enrolment.consent import AcceptedPurpose
from device.enrolment.session import EnrolmentSession, read_redeemed, write_enrolment, write_failure
from device.errors import KeyStoreError
from device.platform.files import shred, write_synced
from device.provisioning.online import RegistrationFacts, check_registration, registration_body
from device.trust.keystore import KeyStore
from device.trust.policy import Policy, read_policy
from device.trust.service_status import StatusReader
from device.trust.trust import load_trust, save_trust, with_service_keys
from device.values.recognition import HandName, PalmCapture
from device.values.status import HeldGallery, ReportedBoard, ReportedLink, ReportedQueues, SelfReport
from gallery.stream import VECTOR_LENGTH, StagedEntry, read_snapshot_page, state_of
from link1 import members
from link1.bodies import Box
from link1.canonical import JsonObject, b64_encode, canonical_bytes, read_strict
from link1.keys import KEY_BYTES, SigningKey
from link1.objects import AppVersion, Pad, Passage, Verdict, VerdictResult
from link1.sealed import SERVICE_ID, seal_record
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import Choice, accept_all
from tools.cloud.simulation.errors import GateWiped, SimulationError
from tools.cloud.simulation.state import (
    SUFFIX,
    GateState,
    HeldPalms,
    changing,
    read_state,
    write_state,
)

T = TypeVar("T")

APP: Final = AppVersion("palm-simulated-gate", "1")
_PAD: Final = Pad("pass", "simulated", 9000)
_TTL_MS: Final = 5000
_MAX_ANSWER_BYTES: Final = 256 * 1024
_SCORES: Final = {VerdictResult.MATCH: (9000, 3000), VerdictResult.NO_MATCH: (1200, 100)}
"""score_q and margin_q of a result; others have none to speak of."""


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000


def place_of(folder: Path, device_id: str) -> Path:
    """Where a gate of `folder` is kept."""
    return folder / f"{device_id}{SUFFIX}"


def validator_id(device_id: str) -> str:
    """The validator at the other end of a simulated gate's cable: each has its own."""
    return f"{device_id[:60]}-dbd"


def make_gate(
    folder: Path,
    facts: RegistrationFacts,
    token: str,
    register_validator: Callable[[str], object],
    *,
    url: str,
    data: Path,
    database: str | None,
) -> None:
    """Register a new gate and keep it in `folder`; `register_validator` takes the validator's public key.

    `data` and `database` are where the server's store is. Raises SimulationError when the gate is there
    already, CloudError when the service refuses it or does not answer.
    """
    place = place_of(folder, facts.device_id)
    partial = place.with_suffix(".partial")
    if place.exists():
        raise SimulationError(f"{place} is there already; take another --device-id, or remove that folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys, validator = _keys_of(partial)
    register_validator(SigningKey.from_seed(validator).public.b64)
    try:
        answer = asyncio.run(_register(ServerAddress.parse(url), facts, keys, token))
    except CloudProblem:
        shutil.rmtree(partial)  # the next run makes other keys
        raise
    trust = check_registration(answer.body, facts, keys, answer.server_time_ms or now_ms())
    if trust.gallery is None:
        raise SimulationError("the service gave this gate no gallery stream")
    save_trust(partial / "trust.json", trust)
    write_state(
        partial,
        GateState(
            data=str(data.absolute()),
            database=database,
            url=url,
            model_id=facts.model_id,
            boot_id=secrets.token_hex(16),
            made_at_ms=now_ms(),
            palms=HeldPalms.empty(*trust.gallery),
        ),
    )
    partial.rename(place)


def _keys_of(partial: Path) -> tuple[KeyStore, bytes]:
    """The gate's keys and its validator's seed: those of a run that was cut off, which the service may have
    registered, else new ones."""
    try:
        return KeyStore.open(partial / "keys"), (partial / "validator.key").read_bytes()
    except (KeyStoreError, OSError):
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    keys, validator = KeyStore.create(partial / "keys"), secrets.token_bytes(KEY_BYTES)
    write_synced(partial / "validator.key", validator, mode=0o600)
    return keys, validator


async def _register(address: ServerAddress, facts: RegistrationFacts, keys: KeyStore, token: str) -> Answer:
    async with CloudClient(address, keys.http, now_ms) as cloud:
        return await cloud.register(registration_body(facts, keys, token), token, secrets.token_hex(16))


class SimulatedGate:
    """One gate of a folder, with its connection to the server.

    async with SimulatedGate(place_of(folder, "gate-1")) as gate:
        await gate.follow(wait_s=0)
    """

    def __init__(self, place: Path) -> None:
        """Raises SimulationError when no gate is there, GateWiped when nothing is left of it."""
        state = read_state(place)
        if state.wiped is not None:
            _destroy_keys(place)  # of a wipe that was cut off
            raise _already_wiped(place, state.wiped)
        self._place = place
        self._keys = KeyStore.open(place / "keys")
        self._validator = SigningKey.from_seed((place / "validator.key").read_bytes())
        self._trust = load_trust(place / "trust.json")
        self._cloud = CloudClient(ServerAddress.parse(state.url), self._keys.http, now_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._cloud.close()

    @property
    def device_id(self) -> str:
        return self._trust.device_id

    @property
    def tenant_id(self) -> str:
        return self._trust.tenant_id

    @property
    def state(self) -> GateState:
        """What the gate remembers now."""
        return read_state(self._place)

    async def unless_revoked(self, work: Awaitable[T]) -> T:
        """The result of the work; a gate whose keys the service no longer takes asks why.

        Raises GateWiped as `obey` does, and what the work raises.
        """
        try:
            return await work
        except CloudProblem as problem:
            if problem.code == ServiceCode.UNAUTHENTICATED:
                await self.obey()
            raise

    async def follow(self, wait_s: int) -> None:
        """Take what is new in the gallery; `wait_s` (0..55) waits that long for news."""
        more = True
        while more:
            palms = self.state.palms
            try:
                answer = await self._cloud.gallery_deltas(
                    epoch=palms.epoch, after_seq=palms.seq, wait_s=wait_s
                )
            except CloudProblem as problem:
                if problem.code != ServiceCode.HISTORY_EXPIRED:
                    raise
                await self._take_snapshot()
                continue
            with changing(self._place) as state:
                # Another command of this gate may have been faster: deltas that it applied are passed over.
                more = state.palms.take(answer.body, self._trust.gallery_key)

    async def _take_snapshot(self) -> None:
        cursor: str | None = None
        entries: list[StagedEntry] = []
        while True:
            answer = await self._cloud.gallery_snapshot(cursor)
            page = read_snapshot_page(answer.body, self._trust.gallery_key)
            entries += page.entries
            if not page.has_more:
                break
            cursor = json.loads(answer.body)["next_cursor"]
        if state_of(staged.sha256 for staged in entries) != page.head.state:
            raise SimulationError("the snapshot is not the one that the service signed")
        palms = HeldPalms(page.head.stream, page.head.epoch, page.head.seq, page.head.head.hex())
        for staged in entries:
            palms.put(staged.entry)
        with changing(self._place) as state:
            state.palms = palms

    async def report(self) -> None:
        """Report, renew the service's published keys, and hand in the verdicts that the service lacks."""
        published = members.array(
            read_strict((await self._cloud.signing_keys()).body, max_bytes=_MAX_ANSWER_BYTES), "keys", 0, 64
        )
        renewed = with_service_keys(self._trust, published, now_ms())
        if renewed != self._trust:
            self._trust = renewed
            save_trust(self._place / "trust.json", renewed)
        await self._cloud.report(canonical_bytes(self._self_report().to_obj()), secrets.token_hex(16))
        await self.deliver()

    def _self_report(self) -> SelfReport:
        state, policy = self.state, self._policy
        palms = state.palms
        return SelfReport(
            v=1,
            boot_id=state.boot_id,
            at_ms=now_ms(),
            uptime_s=(now_ms() - state.made_at_ms) // 1000,
            serving=True,
            app=APP,
            model_id=state.model_id,
            thr_id=policy.thresholds.thr_id,
            config_seq=policy.config_seq,
            health=(),
            gallery=HeldGallery(palms.stream, palms.epoch, palms.seq),
            link=ReportedLink(up=True, dbd_id=self._trust.dbd_id),
            queues=ReportedQueues(len(state.unsent), 0),
            board=ReportedBoard(None, None, None),
            camera=None,
            counters=state.counters,
            updates=(),
        )

    @property
    def _policy(self) -> Policy:
        trust = self._trust
        return read_policy(trust.config, roots=trust.roots, taken_at_ms=trust.pinned_at_ms)

    def decide(
        self, result: VerdictResult, subject_ref: str | None, decided_at_ms: int
    ) -> tuple[Verdict, JsonObject]:
        """The next verdict and its signed object; chained and kept.

        MATCH becomes NO_MATCH for a person not recognized.
        """
        with changing(self._place) as state:
            known = None
            if result is VerdictResult.MATCH and subject_ref is not None:
                known = state.palms.template_of(subject_ref)
                result = VerdictResult.NO_MATCH if known is None else result
            score_q, margin_q = _SCORES.get(result, (0, 0))
            spoof = result is VerdictResult.SPOOF
            state.verdict_seq += 1
            verdict = Verdict(
                txn_id=secrets.token_hex(16),
                gate_id=self._trust.gate_id,
                dbd_id=self._trust.dbd_id,
                nonce_b64=b64_encode(secrets.token_bytes(16)),
                issued_at_ms=decided_at_ms,
                ttl_ms=_TTL_MS,
                decided_at_ms=decided_at_ms,
                device_id=self.device_id,
                result=result,
                verdict_seq=state.verdict_seq,
                prev_ref=state.last_ref,
                score_q=score_q,
                margin_q=margin_q,
                quality_q=20 if result is VerdictResult.POOR_CAPTURE else 80,
                pad=replace(_PAD, res="fail", score_q=500) if spoof else _PAD,
                attempts=1,
                model_id=state.model_id,
                thr_id=self._policy.thresholds.thr_id,
                gallery=state.palms.mark,
                subject_ref=None if known is None else subject_ref,
                onboard_ref=None if known is None else known["onboard_ref"],
                hand=None if known is None else known["hand"],
            )
            signed = sign_object(Kind.VERDICT, verdict.to_obj(), self._keys.verdict)
            state.last_ref, state.last_verdict = object_ref(signed), signed
            state.last_outcome = state.last_passed = None
            counter = f"verdicts.{verdict.decision}.{verdict.result}"
            state.counters[counter] = state.counters.get(counter, 0) + 1
        return verdict, signed

    def hand_over(
        self, signed_verdict: JsonObject, decision: JsonObject | None = None, *, unknown: bool = False
    ) -> None:
        """Lay a verdict out for the service, with its decision, or as a verdict that gets none."""
        with changing(self._place) as state:
            item: JsonObject = {"signed_verdict": signed_verdict}
            if decision is not None:
                item["signed_decision"] = decision
            if unknown:
                item["outcome_unknown"] = True
            state.unsent.append(item)

    def answered(self, verdict: Verdict, verdict_ref: str, outcome: str | None) -> JsonObject:
        """The validator's signed decision on a verdict. `outcome`: None opens for an accept only."""
        choice = accept_all(verdict)
        if outcome is not None and outcome != choice.outcome:
            choice = Choice(outcome, "operator_rule", actuated=outcome == "LIBERAR")
        with changing(self._place) as state:
            state.decision_seq += 1
            at_ms = verdict.decided_at_ms + 5
            decision = choice.decision_on(verdict, verdict_ref, state.decision_seq, at_ms)
            if state.last_ref == verdict_ref:
                state.last_outcome = choice.outcome
        return sign_object(Kind.DECISION, decision.to_obj(), self._validator)

    def turn(self, *, passed: bool) -> None:
        """The validator reports whether the person of the last verdict went through.

        Raises SimulationError without a turn sensor or a verdict.
        """
        if not self._trust.passage_sensor:
            raise SimulationError(f"{self.device_id} has no turn sensor; make a gate with --passage-sensor")
        with changing(self._place) as state:
            if state.last_verdict is None:
                raise SimulationError(
                    f"{self.device_id} has decided nothing yet: palmctl cloud simulate pass"
                )
            of = state.last_verdict["verdict"]
            state.passage_seq += 1
            state.last_passed = passed
            passage = Passage(
                txn_id=of["txn_id"],
                dbd_id=of["dbd_id"],
                gate_id=of["gate_id"],
                verdict_ref=state.last_ref,
                passed=passed,
                cause="giro" if passed else "timeout",
                at_ms=of["decided_at_ms"] + 900,
                dbd_event_seq=state.passage_seq,
            )
            signed = sign_object(Kind.PASSAGE, passage.to_obj(), self._validator)
            state.unsent.append({"signed_verdict": state.last_verdict, "signed_passage": signed})

    async def deliver(self) -> None:
        """Upload every verdict that the service lacks. Raises SimulationError when it rejects one."""
        while items := self.state.unsent[:MAX_BATCH_ITEMS]:
            body = canonical_bytes({"items": items})
            # The same items have the same key, so a repetition after a lost answer is one.
            key = f"verdicts-{hashlib.sha256(body).hexdigest()[:32]}"
            answer = json.loads((await self._cloud.upload_verdicts(body, key)).body)
            with changing(self._place) as state:
                state.unsent = [item for item in state.unsent if item not in items]
            if answer["rejected"]:
                codes = ", ".join(str(item["code"]) for item in answer["rejected"])
                raise SimulationError(f"the service rejected what {self.device_id} uploaded: {codes}")

    async def redeem(self, short_code: str) -> EnrolmentSession:
        body = canonical_bytes({"short_code": short_code})
        return read_redeemed((await self._cloud.redeem(body, secrets.token_hex(16))).body)

    async def enrol(self, session: EnrolmentSession, seed: int | None, *, fails: bool) -> JsonObject:
        """Finish a session with generated palms, or as a failure; the service's answer.

        `seed`: the same one makes the same palms; None takes one of the session, so people differ.
        """
        if fails:
            body = bytes(write_failure(session.token))
        else:
            digest = hashlib.sha256(session.session_id.encode()).digest()
            random = np.random.default_rng(int.from_bytes(digest[:8], "big") if seed is None else seed)
            both: tuple[HandName, ...] = ("L", "R")
            palms: dict[HandName, PalmCapture] = {}
            for hand in both:  # both are drawn, so a hand does not depend on which are asked for
                values = random.standard_normal(VECTOR_LENGTH)
                vector = (values / np.linalg.norm(values)).astype(np.float32)
                palms[hand] = PalmCapture(hand, vector, 80, _PAD, now_ms())
            version = session.terms_version or self._trust.terms_version
            consents = [
                AcceptedPurpose("enrollment", version, now_ms()),
                AcceptedPurpose("identification", version, now_ms()),
            ]
            wanted = [palms[hand] for hand in session.hands_required or both]
            body = bytes(write_enrolment(session.token, self.state.model_id, wanted, consents))
        key = f"enrol-{hashlib.sha256(body).hexdigest()[:32]}"
        return dict(json.loads((await self._cloud.enroll(body, key)).body))

    def mail(self) -> JsonObject:
        """The next record for the outbox: a sealed report, which the validator carries."""
        with changing(self._place) as state:
            state.out_seq += 1
            palms = state.palms
            return seal_record(
                box=Box.OUT,
                src=self.device_id,
                dst=SERVICE_ID,
                seq=state.out_seq,
                rid=secrets.token_hex(16),
                created_ms=now_ms(),
                type_="svc.device.report",
                body={
                    "health": [],
                    "refused": [],
                    "gallery": {"stream": palms.stream, "epoch": palms.epoch, "seq": palms.seq},
                    "mail": {"in_applied_seq": 0},
                },
                to=self._trust.mail_seal_key,
                signer=self._keys.verdict,
            )

    async def obey(self) -> None:
        """Ask for this gate's status; when it orders a wipe, destroy everything and acknowledge that.

        Raises GateWiped after a wipe, also after one by another command of this gate.
        """
        if (wiped := self.state.wiped) is not None:
            raise _already_wiped(self._place, wiped)
        order = self.state.ordered
        if order is None:
            order = await self._wipe_order()
            if order is None:
                return
            with changing(self._place) as state:
                state.ordered, state.palms = order, HeldPalms.empty(state.palms.stream, state.palms.epoch)
        try:
            await self._cloud.wiped(canonical_bytes({"wipe_id": order["wipe_id"]}), secrets.token_hex(16))
        except CloudProblem as problem:
            if problem.code != ServiceCode.UNAUTHENTICATED:
                raise
            # It arrived before, and its answer was lost, or another command of this gate sent it.
        with changing(self._place) as state:
            state.wiped, state.unsent = order, []
        _destroy_keys(self._place)
        raise GateWiped(
            f"{self.device_id} was revoked ({order['reason']}): it destroyed its keys and its gallery, "
            f"and acknowledged wipe_id {order['wipe_id']}"
        )

    async def _wipe_order(self) -> JsonObject | None:
        """`{wipe_id, reason}` of this gate's status, if it orders a wipe."""
        statuses = StatusReader(self.device_id, lambda kid: self._trust.service_key(kid, "device_status"))
        answer = await self._cloud.device_status()
        status = statuses.read(read_strict(answer.body, max_bytes=_MAX_ANSWER_BYTES))
        wipe: JsonObject | None = status.wrapper[Kind.DEVICE_STATUS.member]["wipe"]
        return wipe


def _destroy_keys(place: Path) -> None:
    for key in [*(place / "keys").iterdir(), place / "validator.key"]:
        with suppress(FileNotFoundError):  # another command of this gate destroys them too
            shred(key)


def _already_wiped(place: Path, wiped: JsonObject) -> GateWiped:
    return GateWiped(
        f"{place.stem} was revoked and wiped (wipe_id {wiped['wipe_id']}); "
        "make another gate with: palmctl cloud simulate gate"
    )
