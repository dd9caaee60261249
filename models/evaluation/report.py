"""The page of an evaluation: one self-contained HTML file, and its plots as SVG files."""

import base64
import html
import json
import math
from pathlib import Path
from typing import Final

import numpy as np

from models.evaluation.charts import Curve, curves, det_plot
from models.evaluation.groups import GroupRates
from models.evaluation.measures import ERRORS_NEEDED, PUBLISHED_RATES, Interval, VerificationScores
from models.evaluation.run import Acquired, Evaluation, MethodResult

PAGE_NAME: Final = "report.html"
_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#f6f7f9;margin:0}
main{max-width:960px;margin:0 auto;padding:32px 24px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 8px}
p{margin:6px 0;color:#444}.card{background:#fff;border:1px solid #e2e5ea;border-radius:10px;padding:16px 20px}
table{border-collapse:collapse;width:100%}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid #e8eaee}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:#555;font-size:14px}
small{color:#777;white-space:nowrap}img{max-width:100%;display:block;margin:0 auto}
"""


def write_report(done: Evaluation, folder: Path, model_id: str) -> Path:
    """Write ``report.html``, ``report.json`` and the plots into ``folder``; the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"det.svg": _det(done)}
    for name, method in zip(
        ("scores-device.svg", "scores-cosines.svg", "scores-code.svg"), done.methods, strict=True
    ):
        pictures[name] = _scores(method)
    for name, drawn in pictures.items():
        (folder / name).write_text(drawn, encoding="utf-8")
    record = {"model_id": model_id, **done.record()}
    (folder / "report.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    page = folder / PAGE_NAME
    page.write_text(_page(done, model_id, pictures), encoding="utf-8")
    return page


def _page(done: Evaluation, model_id: str, pictures: dict[str, str]) -> str:
    plots = "".join(
        f'<div class="card"><img alt="{name}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(drawn.encode()).decode("ascii")}"></div><br>'
        for name, drawn in pictures.items()
    )
    acquired = done.acquired
    first = done.methods[0].verification
    across = "".join(_row(m, m.across) for m in done.methods if m.across)
    shown = acquired.shown.total()
    sessions = f"<h2>Across sessions</h2>{_table(done.methods[0].across, across)}" if across else ""
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Palm evaluation</title>
<style>{_STYLE}</style></head><body>
<main><h1>Palm evaluation</h1>
<p>Model {html.escape(model_id)} on a set laid out as {html.escape(done.layout)} ({html.escape(done.kind)}):
{first.people} people, {first.palms} palms, {len(acquired.crops)} of {shown} pictures used.</p>
<p>{acquisition(acquired)}</p>
<h2>All pairs</h2>{_table(first, "".join(_row(m, m.verification) for m in done.methods))}{sessions}
<h2>To set against published figures</h2>{_protocols_table(done)}
<h2>Open-set search</h2>{_search_table(done)}
<h2>At a device's threshold</h2>{_threshold_table(done)}
<h2>Curves</h2>{plots}
<p>Measures after ISO/IEC 19795-1. In small print the 95 % interval from drawing the people again with
replacement; without an error it ends at three over the people, or pairs of people, compared. A rate is
shown only when at least ten false matches were counted for it. The two palms of one person are never compared
with each other. As a device, the scores of two people come from searches in a gallery without the person
shown.</p></main></body></html>
"""


def _det(done: Evaluation) -> str:
    named = [(method.name, method.headline()) for method in done.methods]
    mated, non_mated = named[0][1].mated, named[0][1].non_mated
    return det_plot(
        {
            "title": "Detection error trade-off",
            "about": f"{mated:,} comparisons of one palm, {non_mated:,} of two people",
            "curves": [
                {
                    "name": name,
                    "comparisons": [measured.mated, measured.non_mated],
                    "fmr": measured.det[0].tolist(),
                    "fnmr": measured.det[1].tolist(),
                }
                for name, measured in named
            ],
            # A decade at least, also where one comparison is all there is.
            "ranges": ((-min(6.0, max(1.0, math.ceil(math.log10(non_mated)))), 0.0), (-4.0, 0.0)),
        }
    )


def _scores(method: MethodResult) -> str:
    """How often which similarity came out, for one palm and for two people; each as a share of its peak."""
    low = min(method.mated.min(), np.quantile(method.non_mated, 1e-4))
    edges = np.linspace(float(low), float(max(method.mated.max(), method.non_mated.max())), 90)
    drawn = []
    for name, scores in (("one palm", method.mated), ("two people", method.non_mated)):
        counts = np.histogram(scores, edges)[0]
        drawn.append(Curve(name, (counts / max(int(counts.max()), 1)).tolist(), int(counts.argmax())))
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    about = "of all pairs of pictures; each curve as a share of its peak"
    return curves(
        f"Scores: {method.name}", about, middles, drawn, across="similarity", up="frequency", number=".2f"
    )


def _table(shape: VerificationScores | None, rows: str) -> str:
    rates = [fmr for fmr, _, _ in shape.fnmr_at_fmr] if shape else []
    heads = "".join(f"<th>FNMR at FMR {rate:g}</th>" for rate in rates)
    pairs = (
        f"<p>{shape.mated:,} comparisons of one palm, {shape.non_mated:,} of two people.</p>" if shape else ""
    )
    return f'<div class="card">{pairs}<table><tr><th>method</th><th>EER</th>{heads}</tr>{rows}</table></div>'


def _row(method: MethodResult, measured: VerificationScores | None) -> str:
    if measured is None:
        return ""
    rates = "".join(f"<td>{_rate(fnmr)}</td>" for _, _, fnmr in measured.fnmr_at_fmr)
    return f"<tr><td>{html.escape(method.name)}</td><td>{_rate(measured.eer)}</td>{rates}</tr>"


def _search_table(done: Evaluation) -> str:
    first = done.methods[0].search
    heads = "".join(f"<th>FNIR at FPIR {rate:g}</th>" for rate in first.fpir)
    rows = "".join(
        f"<tr><td>{html.escape(m.name)}</td>"
        + "".join(f"<td>{_share(v)}</td>" for v in m.search.fnir)
        + "</tr>"
        for m in done.methods
    )
    told = f"<p>{first.enrolled} palms enrolled by one picture each, {first.searches} searches.</p>"
    return f'<div class="card">{told}<table><tr><th>method</th>{heads}</tr>{rows}</table></div>'


def acquisition(acquired: Acquired) -> str:
    """What became of the pictures on the way to crops, in a sentence or two."""
    failed = acquired.failures
    words = (
        f"Failure to acquire {_share(failed.total() / acquired.shown.total())}: {failed.unreadable} not "
        f"readable, {failed.no_hand} without a hand found, {failed.poor_quality} of poor quality."
    )
    if acquired.hands is None:
        return words
    hands = acquired.hands.record()
    return (
        f"{words} Of {hands['side_named']} hands whose side the set names, {hands['wrong_side']} were taken "
        "for the other side. Quality (5 %, median, 95 %): {p05}, {median}, {p95}.".format(
            **hands["quality_q"]
        )
    )


def _protocols_table(done: Evaluation) -> str:
    heads = "".join(f"<th>TAR at FMR {rate:g}</th>" for rate in PUBLISHED_RATES)
    rows = "".join(
        f"<tr><td>{name}<br><small>{measured.mated:,} comparisons of one palm, {measured.non_mated:,} of two "
        "people</small></td>"
        + "".join(f"<td>{_optional(measured.accepted_at(rate))}</td>" for rate in PUBLISHED_RATES)
        + "</tr>"
        for name, measured in done.protocols()
    )
    needed = ERRORS_NEEDED / PUBLISHED_RATES[-1]
    return (
        '<div class="card"><p>TAR is 1 − FNMR, with the labels as the set has them. A rate needs '
        f"{ERRORS_NEEDED} false matches, so {PUBLISHED_RATES[-1]:g} needs {needed:,.0f} comparisons of two "
        f"people.</p><table><tr><th>protocol</th>{heads}</tr>{rows}</table></div>"
    )


def _threshold_table(done: Evaluation) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(group_name(one))}</td><td>{one.people}</td><td>{_rate(one.failure_to_acquire)}</td>"
        f"<td>{_optional(one.fnmr)}</td><td>{_optional(one.fmr)}</td></tr>"
        for one in done.at_threshold
    )
    return (
        f'<div class="card"><p>As a device, a match from a score of {done.accept:g}; FMR among the people '
        "of one group.</p><table><tr><th>who</th><th>people</th><th>failure to acquire</th><th>FNMR</th>"
        f"<th>FMR</th></tr>{rows}</table></div>"
    )


def group_name(rates: GroupRates) -> str:
    """How a group is called in a table."""
    return f"{rates.attribute}: {rates.group}" if rates.attribute else "everyone"


def _optional(interval: Interval | None) -> str:
    return "–" if interval is None else _rate(interval)


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def _rate(interval: Interval) -> str:
    return f"{_share(interval.value)} <small>{100 * interval.low:.2f}–{100 * interval.high:.2f}</small>"
