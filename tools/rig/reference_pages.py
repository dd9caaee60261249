"""Writes the pages that only repeat the code: `python -m tools.rig.reference_pages`, or `make reference`.

docs/reference/ gets the configuration, the command line, the health words, the metrics and the figures; the
field card gets its table of health words. A test fails when one of them is out of date.
"""

import inspect
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from device.config.config import MEMBERS, defaults_text
from device.health import NOT_SERVING, HealthWord
from tools.palmctl.groups import walk
from tools.palmctl.language import marked
from tools.rig.health_advice import ADVICE
from tools.rig.portuguese_pages import in_portuguese, with_blocks

DOCS: Final = Path(__file__).parents[2] / "docs"
FIGURES: Final = DOCS / "figures" / "benches.json"
FIELD_CARD: Final = DOCS / "howto" / "FIELD.md"
FIELD_CARD_PORTUGUESE: Final = DOCS / "pt-BR" / "FIELD.md"
INSTALL: Final = DOCS / "tutorials" / "INSTALL.md"
INSTALL_PORTUGUESE: Final = DOCS / "pt-BR" / "INSTALL.md"
HEALTH_HEAD: Final = (marked("word"), marked("means"), marked("do"))
_GENERATED: Final = "\nThis page is generated from the code by `make reference`.\n"
_BLOCK: Final = re.compile(r"(<!-- generated: health -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, Callable[[], str]]:
    """Every generated file, and what its content must be now."""
    reference = DOCS / "reference"
    return {
        reference / "CONFIGURATION.md": configuration,
        reference / "COMMANDS.md": command_line,
        reference / "HEALTH.md": health_words,
        reference / "METRICS.md": metrics,
        reference / "FIGURES.md": lambda: figures(json.loads(FIGURES.read_text(encoding="utf-8"))),
        FIELD_CARD: lambda: with_health_table(FIELD_CARD.read_text(encoding="utf-8"), str),
        FIELD_CARD_PORTUGUESE: lambda: with_health_table(
            _blocks_in_portuguese(FIELD_CARD_PORTUGUESE, FIELD_CARD), in_portuguese
        ),
        INSTALL_PORTUGUESE: lambda: _blocks_in_portuguese(INSTALL_PORTUGUESE, INSTALL),
    }


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# ---- configuration


def configuration() -> str:
    """Members, values and defaults of device.toml."""
    parts = [
        """\
# The device's configuration
`/etc/palm-access/device.toml` is written by `palmctl provision` and changed by `palmctl config set`.
The daemons read it when they start. An unknown member is an error, never ignored.
""",
        _GENERATED,
    ]
    for section, members in MEMBERS.items():
        rows = (
            (
                f"`{name}`",
                member.says,
                member.parse.expected.replace("|", "\\|"),
                f"`{member.default_toml}`"
                if member.default_toml
                else "required"
                if member.required
                else "none",
            )
            for name, member in members.items()
        )
        head = ("member", "purpose", "value", "default")
        parts += [f"\n## [{section}]\n", _table(head, rows)]
    parts += ["\n## All defaults\n`palmctl config show --defaults` prints:\n\n"]
    parts += ["```toml\n", defaults_text(), "\n```\n"]
    return "".join(parts)


# ---- command line


_SHARED_BY: Final = 12
"""An option that so many commands have, with the same words, is described once."""
_Record = tuple[str, str]
"""An option or an argument, and what it is for."""


def command_line() -> str:
    """Every command of palmctl with its options."""
    from tools.palmctl.main import main

    commands = list(walk(main, click.Context(main, info_name="palmctl", **main.context_settings)))
    counts = Counter(record for command, context in commands for record in _records(command, context))
    shared = [record for record, count in counts.most_common() if count >= _SHARED_BY]
    return "".join(
        (
            """\
# The command line
`man palmctl` shows the same text. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not provisioned or not
reachable, 4 not permitted to this user. Every command has `-h` and `--help`; where no usage is shown, it
takes nothing but options. A command that has one of these options only names it:
""",
            _block(_listed(shared)),
            _GENERATED,
            *(_described(command, context, shared) for command, context in commands),
        )
    )


def _records(command: click.Command, context: click.Context) -> list[_Record]:
    """The options of a command; of its arguments, those of which more than the name is said."""
    # click keeps the option --help that it made first, perhaps in another context than palmctl's.
    given = [one for one in command.get_params(context) if one is not command.get_help_option(context)]
    found = [record for one in given if (record := one.get_help_record(context))]
    return [(name, " ".join(text.split())) for name, text in found if text.strip() or name.startswith("-")]


def _described(command: click.Command, context: click.Context, shared: list[_Record]) -> str:
    help_text = inspect.cleandoc(command.help or "").split("\f")[0].rstrip()
    page = f"\n## {context.command_path}\n{help_text}\n"
    records = _records(command, context)
    if isinstance(command, click.Group) and not records:
        return page
    lines = list(_listed([record for record in records if record not in shared]))
    if named := [option.split()[0] for option, text in records if (option, text) in shared]:
        lines.append(f"  {', '.join(named)}")
    if (pieces := command.collect_usage_pieces(context)) != ["[OPTIONS]"]:
        lines.insert(0, f"usage: {' '.join([context.command_path, *pieces])}")
    return page + _block(lines) if lines else page


def _listed(records: list[_Record]) -> Iterator[str]:
    width = min(30, max((len(option) for option, _ in records), default=0))
    return (f"  {option:<{width}}  {text}".rstrip() for option, text in records)


def _block(lines: Iterable[str]) -> str:
    return "\n".join(("\n```text", *lines, "```\n"))


# ---- health words


def health_words() -> str:
    """What each word in the device's status means."""
    rows = (
        (f"`{word}`", "yes" if word in NOT_SERVING else "", advice.means) for word, advice in ADVICE.items()
    )
    return "".join(
        (
            """\
# Health words
The device sends these words to the validator in its signed status ([LINK/1](LINK1.md) §4) and to the
service in its reports; `palmctl status` shows them with a detail that stays on the device. While a word
that stops recognition is present, every verdict is an abstention. The set is open: a receiver ignores
words it does not know. What a technician does about each is on the
[field card](../howto/FIELD.md#health-words).
""",
            _GENERATED,
            "\n",
            _table(("word", "stops recognition", "meaning"), rows),
        )
    )


def with_health_table(page: str, say: Callable[[str], str]) -> str:
    """The field card with its table of health words. `say`: from English into the card's language."""
    return _BLOCK.sub(lambda found: found[1] + _health_table(say) + found[2], page)


def _health_table(say: Callable[[str], str]) -> str:
    rows = ((_marked(word), say(advice.means), say(advice.do)) for word, advice in ADVICE.items())
    return _table(tuple(map(say, HEALTH_HEAD)), rows)


def _blocks_in_portuguese(page: Path, english: Path) -> str:
    return with_blocks(page.read_text(encoding="utf-8"), english.read_text(encoding="utf-8"))


def _marked(word: HealthWord) -> str:
    return f"**`{word}`**" if word in NOT_SERVING else f"`{word}`"


# ---- metrics


def metrics() -> str:
    """What the admin bind shows Prometheus, without what the library adds about the process."""
    from cloud_client.reference_server.domain.devices.fleet import FleetFigures, ReportedDevice
    from cloud_client.reference_server.web.access_log import ServedRequest
    from cloud_client.reference_server.web.admin.metrics import Metrics, ServiceFigures

    shown = Metrics(each_device=True)
    shown.note(ServedRequest("GET", "/v1/health", 200, 0.1, ""))
    one = ReportedDevice("acme", "gate-7", "serving", 0, {}, {})
    fleet = FleetFigures(queued={"verdicts": 0}, storage_free_mib=0, temperature_c=0, devices=(one,))
    standing = ServiceFigures({"active": 1}, [0], 0, 0, {"open": 1}, 0, 0, fleet)
    text = shown.page(standing, waiters=0, queued={"write": 0}).decode()
    helps = dict(re.findall(r"^# HELP (palm_\w+) (.*)$", text, re.MULTILINE))
    rows = (
        (f"`{name}`", kind, ", ".join(_labels(text, name)), helps[name])
        for name, kind in re.findall(r"^# TYPE (palm_\w+) (\w+)$", text, re.MULTILINE)
    )
    return "".join(
        (
            """\
# Metrics
Served at `/metrics` of the admin bind ([ADMIN.md](ADMIN.md#metrics)) in Prometheus' text format, next to
the usual `process_…`. Labels are methods, route templates, statuses and words of the contract: never a
path, query, key or anything personal. What has the label `device_id` is served with `palmctl cloud serve
--metrics-per-device` alone, for small fleets.
""",
            _GENERATED,
            "\n",
            _table(("metric", "type", "labels", "meaning"), rows),
        )
    )


def _labels(text: str, name: str) -> list[str]:
    found = re.search(rf"^{name}(?:_bucket)?{{(.*?)}}", text, re.MULTILINE)
    return [label for label in re.findall(r'(\w+)="', found[1]) if label != "le"] if found else []


# ---- figures

_COMMANDS: Final[Mapping[str, str]] = {
    "bench": "palmctl bench",
    "device": "palmctl bench device",
    "gallery": "python -m tools.rig.bench.gallery 100000",
    "link": "palmctl bench link",
    "cloud": "palmctl bench cloud",
    "scale": "python -m tools.rig.bench.cloud_scale",
    "strangers": "palmctl bench strangers",
}
"""By the name of the file that the command's figures are in."""
_ROWS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "bench": (
        (
            "hand suddenly in view → verdict at the validator",
            "p50 {verdict_latency/by_film_ms/sudden/p50} ms, p99 {verdict_latency/by_film_ms/sudden/p99} ms",
        ),
        (
            "deciding frame read → verdict written to the port",
            "p50 {verdict_latency/inside_p50_ms} ms, p99 {verdict_latency/inside_p99_ms} ms",
        ),
        (
            "the same over recognition and search in a plain loop, one picture after the other",
            "{verdict_latency/inside_p50_over_floor}×",
        ),
        (
            "that loop at a camera's pace",
            "p50 {verdict_latency/paced_floor_ms} ms, p99 {verdict_latency/paced_floor_p99_ms} ms",
        ),
        ("image work and search", "{verdict_latency/image_and_search_ms} ms"),
        ("signing, journal and cable", "{verdict_latency/sign_journal_cable_ms} ms"),
    ),
    "device": (
        ("hand → verdict, 100,000 templates", "p50 {quiet/p50} ms, p99 {quiet/p99} ms"),
        (
            "the same while snapshots are applied",
            "p50 {during_snapshot/p50} ms, p99 {during_snapshot/p99} ms",
        ),
        ("the same while a release is received", "p50 {during_update/p50} ms, p99 {during_update/p99} ms"),
        ("memory per template, at 1,000,000", "{bytes_a_template/1000000} bytes"),
        ("CPU with nobody present, 15 frames/s", "{idle_cpu_share} of a core"),
    ),
    "gallery": (
        ("search of 100,000 templates", "p50 {search_p50_ms} ms, p99 {search_p99_ms} ms"),
        ("exact search of the same (IndexFlatIP)", "p50 {flat_p50_ms} ms"),
        ("100,000 templates opened", "{open_ms} ms"),
    ),
    "link": (
        ("frame codec", "{codec/mb_per_s} MB/s"),
        ("plain COBS and CRC-32", "{codec/plain_mb_per_s} MB/s"),
        (
            "request → verdict over the cable, recognition stubbed",
            "p50 {round_trip/ours_ms/p50} ms, p99 {round_trip/ours_ms/p99} ms",
        ),
        (
            "the same with the journal's fsync",
            "p50 {round_trip/durable_ms/p50} ms, p99 {round_trip/durable_ms/p99} ms",
        ),
        ("1 MiB of mail", "{mail/mib_per_s} MiB/s"),
        ("the least work the contract asks for, in C", "{mail/floor_mib_per_s} MiB/s"),
    ),
    "cloud": (
        (
            "getSubject, CPU of the server",
            "{requests/get_subject/server_us} µs (bare app {requests/get_subject/bare_us} µs)",
        ),
        (
            "createSubject, durable when answered, CPU",
            "{requests/create_subject/server_us} µs (bare app {requests/create_subject/bare_us} µs)",
        ),
        ("a batch of 100 verdicts, CPU", "{verdict_batch/cpu_ms} ms"),
        (
            "erasure → tombstone at 1,000 waiting devices",
            "p50 {long_poll/p50_ms} ms, last {long_poll/last_ms} ms",
        ),
        ("snapshot of 100,000 templates taken by one device", "{snapshot/seconds} s"),
    ),
    "scale": (
        (
            "1,000,000 verdicts, 2,000 waiting devices: erasure → tombstone at each",
            "p50 {erasure_at_each/p50_ms} ms, p99 {erasure_at_each/p99_ms} ms",
        ),
        (
            "a back office's requests meanwhile (the same, idle)",
            "p99 {erasures/all/p99_ms} ms ({idle/all/p99_ms} ms)",
        ),
        ("the same while what is past its time is deleted", "p99 {sweep/all/p99_ms} ms"),
        ("the same while two processes list verdicts", "p99 {lists/all/p99_ms} ms"),
        ("the same during a backup", "p99 {backup/all/p99_ms} ms"),
    ),
    "strangers": (("a back office's request, worst attack", "p99 {*/attacked/p99_ms} ms"),),
}
"""What the table shows of each bench: a label, and a text with paths into the bench's figures."""


def figures(kept: Mapping[str, Any]) -> str:
    """The table of figures, each with what it was taken by, when and on what."""
    rows = (
        (label, _filled(text, one["figures"]), f"`{_COMMANDS[name]}`", one["date"], f"`{one['commit']}`")
        for name, shown in _ROWS.items()
        if (one := kept.get(name)) is not None
        for label, text in shown
    )
    machines = sorted({one["machine"] for one in kept.values()})
    return "".join(
        (
            f"""\
# Figures
Machine: {"; ".join(machines)}.
The figures show how the parts compare on one machine; a board in a turnstile has its own: take them with
the commands given. Every bench prints a baseline of the same run with its figure. Conditions, distributions
and what else was measured are in [the laboratory](../lab/README.md).

This page is generated by `make reference` from the figures that `make figures` has kept.

""",
            _table(("figure", "value", "command", "date", "commit"), rows),
        )
    )


def _filled(text: str, found: Any) -> str:
    """`text` with every `{path}` replaced by what lies there."""
    return re.sub(r"\{([^}]+)\}", lambda path: str(_at(path[1].split("/"), found)), text)


def _at(path: list[str], found: Any) -> Any:
    """What lies at `path`; a step `*` stands for the largest of all members."""
    for number, step in enumerate(path):
        if step == "*":
            return max(_at(path[number + 1 :], member) for member in found.values())
        found = found[step]
    return found


def keep(folder: Path) -> None:
    """Keep what the benches wrote into `folder`, with date, commit and machine."""
    from tools.rig.pictures.measure import machine_now

    kept = json.loads(FIGURES.read_text(encoding="utf-8"))
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for name in _COMMANDS:
        path = folder / f"{name}.json"
        if path.exists():
            kept[name] = {
                "date": datetime.now(UTC).date().isoformat(),
                "commit": commit,
                "machine": machine_now(),
                "figures": json.loads(path.read_text(encoding="utf-8")),
            }
    FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@click.command()
@click.option("--keep", "folder", type=click.Path(path_type=Path), help="Keep the figures in this folder.")
def main(folder: Path | None) -> None:
    """Write every generated page."""
    if folder is not None:
        keep(folder)
    for path, content in pages().items():
        path.write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
