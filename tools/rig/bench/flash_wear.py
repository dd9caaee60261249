"""What passages cost the card: bytes that the journal and the gallery really send to the disk.

    python -m tools.rig.bench.flash_wear --before 20000 --in FOLDER

The kernel counts them (`write_bytes` in /proc/self/io: every page of the page cache made dirty, again after
each sync). Reported with it: the bytes that the programs wrote (`wchar`), and those that stay on the disk.
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from device.journal.journal import Journal
from device.passage.decision import Outcome, build_verdict
from device.platform.clock import Clock, SystemClock
from device.trust.known_time import gallery_now
from device.values.transactions import StoredVerdict
from gallery.gallery import Gallery
from gallery.stream import Head, head_zero
from link1.canonical import JsonObject, b64_encode
from link1.keys import SigningKey
from link1.objects import Decision, GalleryMark, Pad, Passage, Request, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from tools.palmctl.bench.daemon import BenchFailed

PASSAGES_A_DAY: Final = 5_000
NOTES_A_DAY: Final = 24 * 60
"""Once a minute the gallery notes a fresh head, and the time."""

_DEVICE, _GATE, _DBD, _STREAM = "palm-bench", "gate-bench", "dbd-bench", "bench"
_UPLOAD_EVERY: Final = 20
_MAINTAIN_EVERY: Final = 35
"""Passages of ten minutes, when 5,000 make a day."""
_NOTES: Final = 50


def measure_flash_wear(folder: Path, passages: int = 700, before: int = 0) -> dict[str, Any]:
    """Make `passages` passages with all that comes of them in `folder`, which is on a real disk.

    `before`: so many that the journal already holds, as after days: then a txn_id, which is random, has its
    place on a page that nothing else of these minutes is on. Raises BenchFailed where the kernel counts
    nothing (a folder in memory).
    """
    key, clock, data_key = SigningKey.generate(), SystemClock(), bytes(32)
    path = folder / "wear.db"
    Journal.create(path, device_id=_DEVICE, verdict_kid=key.kid, data_key=data_key)
    journal = Journal(path, device_id=_DEVICE, verdict_kid=key.kid, data_key=data_key, clock=clock)

    def pass_through(numbers: range) -> None:
        for number in numbers:
            _passage(journal, key, number)
            if number % _UPLOAD_EVERY == 0:
                journal.uploaded(journal.next_upload(100).tickets)
            if number % _MAINTAIN_EVERY == 0:
                journal.maintain()
        journal.maintain()

    pass_through(range(1, before + 1))
    began_bytes = path.stat().st_size
    with _counted() as passed:
        pass_through(range(before + 1, before + passages + 1))
    kept = path.stat().st_size - began_bytes
    journal.close()
    with _counted() as noted:
        _take_heads(folder / "gallery", key, clock)
    if not passed["write_bytes"]:
        raise BenchFailed(f"the kernel counts no bytes for {folder}: wear is measured on a real disk")
    a_passage, a_note = passed["write_bytes"] / passages, noted["write_bytes"] / _NOTES
    a_day = a_passage * PASSAGES_A_DAY + a_note * NOTES_A_DAY
    return {
        "passages": passages,
        "before": before,
        "bytes_a_passage": round(a_passage),
        "bytes_written_a_passage": round(passed["wchar"] / passages),
        "bytes_kept_a_passage": round(kept / passages),
        "bytes_a_gallery_note": round(a_note),
        "passages_a_day": PASSAGES_A_DAY,
        "bytes_a_day": round(a_day),
    }


def summary(figures: dict[str, Any]) -> list[str]:
    a_passage, kept = figures["bytes_a_passage"] / 1024, figures["bytes_kept_a_passage"]
    a_day, passages = figures["bytes_a_day"] / 1e6, figures["passages_a_day"]
    return [
        f"flash: {a_passage:.1f} KiB a passage reach the disk, {kept} bytes of it stay",
        f"flash: {a_day:.0f} MB a day at {passages} passages",
    ]


@contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """Filled at the end with what this process has written in between."""
    counted: dict[str, int] = {}
    before = _io()
    yield counted
    after = _io()
    counted.update({name: after[name] - before[name] for name in before})


def _io() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def _passage(journal: Journal, key: SigningKey, number: int) -> None:
    """Request, verdict, decision and turn, as they are kept."""
    at_ms = time.time_ns() // 1_000_000
    txn_id = hashlib.sha256(str(number).encode()).hexdigest()[:32]
    nonce_b64 = b64_encode(hashlib.sha256(txn_id.encode()).digest())
    request = Request(txn_id, _GATE, _DBD, nonce_b64, at_ms, 10_000)
    outcome = Outcome(
        VerdictResult.MATCH,
        score_q=8_000,
        margin_q=4_000,
        quality_q=90,
        pad=Pad("pass", "texture", 9_000),
        attempts=1,
        subject_ref="a" * 32,
        hand="R",
    )

    def build(seq: int, prev_ref: str) -> JsonObject:
        verdict = build_verdict(
            request,
            outcome,
            device_id=_DEVICE,
            verdict_seq=seq,
            prev_ref=prev_ref,
            decided_at_ms=at_ms,
            model_id="palm-bench",
            thr_id="thr-1",
            gallery=GalleryMark(_STREAM, 1, 7, "0123456789abcdef"),
        )
        return sign_object(Kind.VERDICT, verdict.to_obj(), key)

    request_ref = object_ref(sign_object(Kind.REQUEST, request.to_obj(), key))
    stored = journal.append_verdict(txn_id, request_ref, build)
    journal.record_decision(stored.ref, _decision(stored, key, at_ms), awaits_passage=True)
    passage = Passage(
        txn_id=txn_id,
        dbd_id=_DBD,
        gate_id=_GATE,
        verdict_ref=stored.ref,
        passed=True,
        cause="giro",
        at_ms=at_ms,
        dbd_event_seq=number,
    )
    journal.record_passage(stored.ref, sign_object(Kind.PASSAGE, passage.to_obj(), key))


def _decision(stored: StoredVerdict, key: SigningKey, at_ms: int) -> JsonObject:
    verdict = stored.wrapper["verdict"]
    decision = Decision(
        txn_id=verdict["txn_id"],
        gate_id=_GATE,
        dbd_id=_DBD,
        nonce_b64=verdict["nonce_b64"],
        verdict_ref=stored.ref,
        outcome="LIBERAR",
        reason="ok",
        actuated=True,
        decision_seq=stored.seq,
        decided_at_ms=at_ms,
    )
    return sign_object(Kind.DECISION, decision.to_obj(), key)


def _take_heads(folder: Path, key: SigningKey, clock: Clock) -> None:
    """A gallery that hears every minute that nothing is new."""
    started = gallery_now(clock)
    gallery = Gallery(
        folder,
        data_key=bytes(32),
        model_id="palm-bench",
        stream=_STREAM,
        epoch=1,
        gallery_key=lambda kid: key.public if kid == key.kid else None,
        now=started,
    )
    for number in range(_NOTES):
        head = Head(_STREAM, 1, 0, head_zero(_STREAM, 1), 0, started.wall_ms + number)
        gallery.apply_head(sign_object(Kind.GALLERY_HEAD, head.to_obj(), key), started)
    gallery.close()


@click.command()
@click.option("--passages", type=click.IntRange(min=1), default=700, show_default=True)
@click.option(
    "--before", type=click.IntRange(min=0), default=0, help="Passages that the journal holds already."
)
@click.option(
    "--in", "where", type=click.Path(file_okay=False, path_type=Path), help="A folder on a real disk."
)
def main(passages: int, before: int, where: Path | None) -> None:
    """Count what passages write to the disk."""
    with tempfile.TemporaryDirectory(prefix="palm-wear-", dir=where) as folder:
        print("\n".join(summary(measure_flash_wear(Path(folder), passages, before))))


if __name__ == "__main__":
    main()
