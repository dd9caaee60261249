"""Wear of the flash memory, as it reports it (JEDEC eMMC 5.0: life_time in tenths, pre_eol_info)."""

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, skip, warn
from device.doctor.reading import text_of

NAME = "wear"
_WORN_TENTHS = 8
_END_TENTHS = 10
_PRE_EOL = {1: "normal", 2: "warning", 3: "urgent"}


def check(case: Case) -> Finding:
    cards, worst, urgent = [], 0, False
    for card in sorted(case.system("/sys/block").glob("mmcblk*")):
        tenths = [int(word, 16) for word in (text_of(card / "device/life_time") or "").split()]
        if not tenths or not any(tenths):
            continue
        spare = int(text_of(card / "device/pre_eol_info") or "0", 16)
        worst, urgent = max(worst, *tenths), urgent or spare >= 3
        blocks = _PRE_EOL.get(spare, "unknown")
        cards.append(f"{card.name}: up to {max(tenths) * 10} % of its life used, spare blocks {blocks}")
    if not cards:
        return skip(NAME, "no memory here reports its wear (SD cards and virtual disks do not)")
    if worst > _END_TENTHS or urgent:
        return fail(
            NAME, "; ".join(cards), "replace the card now: palmctl factory-reset, new card, provision"
        )
    if worst >= _WORN_TENTHS:
        return warn(NAME, "; ".join(cards), "plan to replace the card at the next visit")
    return ok(NAME, "; ".join(cards))
