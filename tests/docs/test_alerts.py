"""docs/alerts.yml: rules that Prometheus takes, about figures that a server really serves."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from device.doctor.examine import CHECKS
from tests.docs.page_commands import DOCS

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DOCS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]


def served(folder: Path) -> str:
    """/metrics of a server that has answered a request."""
    words = ["-m", "tools.palmctl.main", "cloud", "serve", "--data", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        urls = json.loads(process.stdout.readline())
        with httpx.Client(trust_env=False) as client:
            assert client.get(f"{urls['url']}/v1/health").status_code == 200
            return client.get(f"{urls['admin_url']}/metrics").raise_for_status().text
    finally:
        process.terminate()
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def test_every_check_of_the_doctor_that_an_action_names_is_there() -> None:
    named = [
        re.findall(r"palmctl doctor ([a-z ]+)", rule["annotations"]["action"])  # to the end of the sentence
        for rule in RULES
    ]
    assert {word for found in named for words in found for word in words.split()} <= set(CHECKS)
    assert sum(1 for found in named if found) >= 4


def test_every_rule_is_about_something_that_is_served(tmp_path: Path) -> None:
    samples = [
        sample for family in text_string_to_metric_families(served(tmp_path)) for sample in family.samples
    ]
    names = {sample.name for sample in samples}
    assert RULES
    for rule in RULES:
        assert set(re.findall(r"palm_\w+", rule["expr"])) <= names, rule["alert"]
        for name, label, value in re.findall(r'(palm_\w+)\{(\w+)="([^"]+)"\}', rule["expr"]):
            labels = [sample.labels for sample in samples if sample.name == name]
            # A status that was never answered has no sample yet; its label is there all the same.
            known = {one.get(label) for one in labels}
            assert value in known or (label == "status" and name == "palm_http_requests_total" and known), (
                rule["alert"]
            )


def test_a_gate_that_reports_that_it_recognises_no_one_pages(tmp_path: Path) -> None:
    """Whatever its word is: the reports come, so no rule about silence fires."""
    (gauge,) = (
        family
        for family in text_string_to_metric_families(served(tmp_path))
        if family.name == "palm_fleet_devices"
    )
    others = {sample.labels["state"] for sample in gauge.samples} - {"serving"}
    pages = [rule["expr"] for rule in RULES if rule["labels"]["severity"] == "page"]
    assert {state for state in others if f'max(palm_fleet_devices{{state="{state}"}}) > 0' in pages} == others


def test_both_sides_of_an_and_have_the_same_labels() -> None:
    """Else Prometheus finds no pair, and the rule never fires: each side is one figure without labels."""
    both = [rule["expr"] for rule in RULES if " and " in " ".join(rule["expr"].split())]
    assert len(both) > 2
    for side in (side for expr in both for side in re.split(r"\band\b", expr)):
        assert re.match(r"\s*(max|sum)\(", side), side


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (apt install prometheus)")
def test_a_queue_that_grows_fires(tmp_path: Path) -> None:
    series = 'palm_fleet_queue_max{queue="verdicts",instance="a",job="palm-cloud"}'
    fires = {"eval_time": "2h", "alertname": "PalmQueueGrows", "exp_alerts": [{"exp_labels": {}}]}
    case = {"interval": "1m", "input_series": [{"series": series, "values": "600+10x200"}]}
    told = {"rule_files": [str(DOCS / "alerts.yml")], "tests": [case | {"alert_rule_test": [fires]}]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(told), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "more each minute" in (done.stdout + done.stderr).partition("got:")[2]


def test_every_rule_says_what_to_do() -> None:
    for rule in RULES:
        assert re.fullmatch(r"Palm[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smhd]", rule["for"])
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"] and rule["annotations"]["action"].endswith(".")


def test_the_page_lists_every_rule() -> None:
    page = (DOCS / "howto/OPERATIONS.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(Palm\w+)` \| (yes)? ?\|", page, re.MULTILINE))
    assert rows == {rule["alert"]: "yes" if rule["labels"]["severity"] == "page" else "" for rule in RULES}
