"""docs/reference/LINK1.md says what the code does: pictures, golden values, constants."""

import re

from link1.canonical import canonical_bytes
from link1.channels import RETRANSMIT_AFTER_MS
from link1.envelope import MessageType, Role
from link1.frames import MAX_ENCODED_BYTES, FrameDecoder
from link1.keys import SigningKey
from link1.objects import ErrorCode, GuideHint, Request, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from tools.kit.conform.runner import rules_for
from tools.kit.link_diagrams import PAGE, redraw

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_pictures_are_drawn_from_the_tables() -> None:
    assert redraw(TEXT) == TEXT, "run: python -m tools.kit.link_diagrams"
    assert TEXT.count("```mermaid") == 2


def test_the_golden_frames_on_the_page_are_frames() -> None:
    section = TEXT.split("### Golden frames")[1].split("\n## ")[0]
    frames = [FrameDecoder().feed(bytes.fromhex(text)) for text in re.findall(r"`([0-9a-f]{20,})`", section)]
    assert [[frame.kind.name for frame in found] for found in frames] == [
        ["RST"],
        ["RSTACK"],
        ["PING"],
        ["ACK"],
        ["DATA"],
    ]


def test_the_golden_signature_on_the_page_is_made_by_the_code() -> None:
    key = SigningKey.from_seed(bytes(range(32)))
    asked = Request(
        txn_id="000102030405060708090a0b0c0d0e0f",
        gate_id="gate-1",
        dbd_id="dbd-1",
        nonce_b64="AAECAwQFBgcICQoLDA0ODw==",
        issued_at_ms=1_700_000_000_000,
        ttl_ms=15_000,
    )
    wrapper = sign_object(Kind.REQUEST, asked.to_obj(), key)
    inner = canonical_bytes(asked.to_obj()).decode()
    for value in (key.seed.hex(), key.public.b64, key.kid, inner, wrapper["sig_b64"], object_ref(wrapper)):
        assert value in TEXT


def test_every_word_of_the_contract_is_on_the_page() -> None:
    for words in (MessageType, ErrorCode, GuideHint, VerdictResult):
        for word in words:
            assert word.value in TEXT, word
    timers = f"{RETRANSMIT_AFTER_MS[0]} ms, then {', '.join(map(str, RETRANSMIT_AFTER_MS[1:]))}."
    assert timers in TEXT
    assert f"one buffer of {MAX_ENCODED_BYTES} bytes" in TEXT


def test_the_sections_that_the_conformance_rules_name_are_on_the_page() -> None:
    chapter, headings = "", set()
    for number, title in re.findall(r"^##+ (?:(\d)\. )?(.+)$", TEXT, re.MULTILINE):
        chapter = number or chapter
        headings.add(f"§{chapter} {title}".removesuffix(" (channel 1)"))
    named = {rule.section for role in Role for rule in rules_for(role)}
    assert named <= headings
