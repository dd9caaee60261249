"""`palmctl evaluate` on a small folder of generated crops."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from models.evaluation import generated_people
from tools.palmctl.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    call = ["--people", "3", "--captures", "2", "--first", "30600000", "--crops", str(root)]
    made = CliRunner().invoke(generated_people.main, call)
    assert made.exit_code == 0, made.output
    return root


def test_json_is_one_object_and_the_report_is_said_elsewhere(folder: Path, tmp_path: Path) -> None:
    call = ["evaluate", str(folder), "--kind", "crops", "--out", str(tmp_path / "out"), "--json"]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["layout"] == "plain"
    assert [method["name"] for method in told["methods"]][2] == "Gabor code, untrained"
    assert [protocol["name"] for protocol in told["protocols"]] == [
        "as a device (open set)",
        "one vector, all against all",
    ]
    assert told["protocols"][0]["tar_at_fmr"] == [
        {"fmr": rate, "tar": None}
        for rate in (1e-3, 1e-4, 1e-5, 1e-6)  # 48 comparisons support none
    ]
    assert (tmp_path / "out" / "report.html").exists()
    assert "report.html" in result.stderr


def test_people_reads_as_a_table(folder: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(folder), "--kind", "crops", "--people", "2"])
    assert result.exit_code == 0, result.output
    assert "2 people, 4 palms" in result.stdout
    assert "model, as a device" in result.stdout


def test_groups_are_compared_at_the_device_s_threshold(folder: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("person,age\n0000,20-40\n0001,20-40\n0002,60-80\n")
    call = [
        "evaluate",
        str(folder),
        "--kind",
        "crops",
        "--groups",
        str(groups),
        "--out",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 0, result.output
    assert "as a device, a match from a score of 0.36" in result.stdout
    assert "age: 20-40              2 people" in result.stdout
    assert "needed for 0.001 (10,000)" in result.stdout
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<td>age: 60-80</td><td>1</td>" in page

    groups.write_text("person,age\nanna,20-40\n")
    refused = CliRunner().invoke(main, call)
    assert refused.exit_code == 1
    assert "0000, 0001, 0002" in refused.output


@pytest.mark.parametrize(
    ("option", "name", "says"),
    [
        ("--groups", "groups.csv", "0000, 0001, 0002"),
        ("--out", "groups.csv/below", "Not a directory"),
        ("--out", "taken", "Is a directory"),
    ],
)
def test_what_could_not_be_told_at_the_end_is_said_before_the_work(
    option: str, name: str, says: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups.csv").write_text("person,age\nanna,20-40\n")
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    monkeypatch.setattr("models.evaluation.run.acquire", lambda *_: pytest.fail("the work has begun"))
    call = ["evaluate", str(folder), "--kind", "crops", option, str(tmp_path / name)]
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 1
    assert says in result.output


def test_a_folder_without_a_set_is_refused_with_the_way_on(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(tmp_path)])
    assert result.exit_code == 1
    assert "person/hand/session/picture" in result.output
