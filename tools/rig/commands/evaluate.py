"""`palmctl evaluate`: how well the model tells palms apart, on a folder of pictures."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from models.evaluation.measures import Interval
    from models.evaluation.run import Evaluation


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--layout",
    type=click.Choice(["tongji", "iitd", "polyu", "casia", "ntu-pi", "plain"]),
    help="How the set is laid out; plain is person/hand/session/picture [inferred from the names].",
)
@click.option(
    "--kind",
    type=click.Choice(["crops", "hands"]),
    help="Whether the pictures are cut palms or whole hands [inferred from the folders' names].",
)
@click.option(
    "--model", type=click.Path(path_type=Path, file_okay=False), help="Model folder [the shipped one]."
)
@click.option("--people", type=click.IntRange(min=2), help="Only so many people, the first by name.")
@click.option(
    "--groups",
    type=click.Path(path_type=Path, dir_okay=False),
    help="CSV file: a header person,ATTRIBUTE…, then a line for each person; error rates by group.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write report.html and its plots here."
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def evaluate(
    *,
    folder: Path,
    layout: str | None,
    kind: str | None,
    model: Path | None,
    people: int | None,
    groups: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure false matches and false non-matches on a FOLDER of palm pictures, after ISO/IEC 19795-1.

    "As a device": searched for as the crop may have slipped, and scored among the people of the set, enrolled
    with their first three pictures; scores of two people are from searches in a gallery without the person
    shown. "Plain cosines": one vector against one.

    The untrained Gabor competitive code is in the same table: a model that does not beat it is not worth
    installing. Pictures are only read; only the report that --out asks for is written.

    With --groups, failures to acquire, FNMR and FMR at the device's threshold are stated for every group,
    after ISO/IEC 19795-10. A person is named as the folders and files name people. Tongji and PolyU number
    palms: the first two palms are person 0 of Tongji and person 1 of PolyU.
    """
    from link1.plain_file import read_plain_file
    from models.evaluation.groups import MOST_GROUP_BYTES, parse_groups, require_named
    from models.evaluation.report import PAGE_NAME, write_report
    from models.evaluation.run import acquire
    from models.evaluation.run import evaluate as measure
    from models.evaluation.sets import EvaluationSetError, first_people, read_set
    from models.manifest import load_manifest, open_embedder, shipped_model_dir
    from tools.palmctl.live_terminal import is_live
    from tools.palmctl.output_file import require_writable
    from tools.rig.gallery_scoring import scoring_among

    manifest = load_manifest(model if model is not None else shipped_model_dir())
    try:
        grouped = parse_groups(read_plain_file(groups, MOST_GROUP_BYTES)) if groups is not None else None
    except OSError as e:
        raise EvaluationSetError(f"the file of groups {groups} is not readable: {e.strerror}") from e
    found = read_set(folder, layout)  # type: ignore[arg-type]  # click has checked the choice
    if people is not None:
        found = first_people(found, people)
    # A large set takes hours, whose figures would be lost at the end.
    if grouped is not None:
        require_named(grouped, {picture.person for picture in found.pictures})
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        require_writable(out / PAGE_NAME)
    shown_as = kind or found.kind
    told = _progress if is_live(sys.stderr) else _silent
    acquired = acquire(found, shown_as, manifest.thresholds.quality_q, told)  # type: ignore[arg-type]
    embedder = open_embedder(manifest)
    done = measure(
        found,
        acquired,
        shown_as,  # type: ignore[arg-type]
        embedder,
        scoring_among=scoring_among,
        accept=manifest.thresholds.accept_q / 10_000,
        groups=grouped,
        told=told,
    )
    if out is not None:
        page = write_report(done, out, manifest.model_id)
        click.echo(f"the report is {page}", err=True)
    if as_json:
        click.echo(json.dumps({"model_id": manifest.model_id, **done.record()}))
    else:
        click.echo("\n".join(_lines(done, manifest.model_id)))


def _lines(done: "Evaluation", model_id: str) -> list[str]:
    from models.evaluation.report import acquisition

    first, acquired = done.methods[0].verification, done.acquired
    used = f"{len(acquired.crops)} of {acquired.shown.total()} pictures"
    lines = [f"{model_id} on {done.layout} ({done.kind}): {first.people} people, {first.palms} palms, {used}"]
    lines.append(acquisition(acquired))
    for title, across in (("all pairs", False), ("across sessions", True)):
        for i, method in enumerate(done.methods):
            measured = method.across if across else method.verification
            if measured is None:
                break
            if i == 0:
                lines.append(f"\n{title}: {measured.mated} mated, {measured.non_mated} non-mated comparisons")
            eer = measured.eer
            rates = [f"FNMR {100 * r.value:5.2f} % at {fmr:g}" for fmr, _, r in measured.fnmr_at_fmr]
            shown = f"EER {100 * eer.value:5.2f} % ({100 * eer.low:.2f} to {100 * eer.high:.2f})"
            lines.append("   ".join([f"  {method.name:24s}{shown}", *rates]))
    lines.append(f"\nopen-set search: {done.methods[0].search.enrolled} palms enrolled by one picture each")
    for method in done.methods:
        found = zip(method.search.fpir, method.search.fnir, strict=True)
        rates = [f"FNIR {100 * fnir:5.2f} % at FPIR {fpir:g}" for fpir, fnir in found]
        lines.append("   ".join([f"  {method.name:24s}", *rates]))
    lines += ["", *_protocol_lines(done), "", *_threshold_lines(done)]
    return lines


def _protocol_lines(done: "Evaluation") -> list[str]:
    from models.evaluation.measures import ERRORS_NEEDED, PUBLISHED_RATES

    lines = ["to set against published figures: TAR = 1 - FNMR, labels as the set has them"]
    for name, measured in done.protocols():
        tars = [(rate, measured.accepted_at(rate)) for rate in PUBLISHED_RATES]
        told = [f"{100 * tar.value:6.2f} % at {rate:g}" if tar else f"- at {rate:g}" for rate, tar in tars]
        lines.append("   ".join([f"  {name:28s}", *told]))
        if any(tar is None for _, tar in tars):
            few = [f"{rate:g} ({ERRORS_NEEDED / rate:,.0f})" for rate, tar in tars if tar is None]
            lines.append(f"    {measured.non_mated:,} comparisons of two people; needed for {', '.join(few)}")
    return lines


def _threshold_lines(done: "Evaluation") -> list[str]:
    from models.evaluation.groups import worst_over_best
    from models.evaluation.report import group_name

    def shown(rate: "Interval | None") -> str:
        return f"{100 * rate.value:.3g} % ({100 * rate.low:.3g} to {100 * rate.high:.3g})" if rate else "-"

    lines = [f"as a device, a match from a score of {done.accept:g}; FMR among the people of the group"]
    lines += [
        f"  {group_name(one):24s}{one.people} people   failure to acquire {shown(one.failure_to_acquire)}   "
        f"FNMR {shown(one.fnmr)}   FMR {shown(one.fmr)}"
        for one in done.at_threshold
    ]
    for attribute, ratios in worst_over_best(done.at_threshold).items():
        words = [f"{name} {ratio:g}" if ratio else f"{name} -" for name, ratio in ratios.items()]
        lines.append(f"  {attribute}: highest over lowest: {', '.join(words)}")
    return lines


def _progress(stage: str, done: int, of: int) -> None:
    end = "\n" if done == of else ""
    click.echo(f"\r{stage}: {done} of {of}{end}", nl=False, err=True)


def _silent(_stage: str, _done: int, _of: int) -> None:
    """No terminal, no progress."""
