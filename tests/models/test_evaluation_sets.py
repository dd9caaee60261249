"""Every owner's names, on folders of empty files: nothing is opened, only read off."""

from pathlib import Path

import pytest

from models.evaluation.sets import EvaluationSetError, first_people, read_set


def lay(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def who(root: Path) -> list[tuple[str, str, str]]:
    return [(p.person, p.palm, p.session) for p in read_set(root).pictures]


def test_tongji_numbers_ten_pictures_a_palm_in_two_sessions(tmp_path: Path) -> None:
    numbers = ("00001", "00010", "00011", "00021")
    lay(tmp_path, *(f"ROI/{session}/{n}.bmp" for session in ("session1", "session2") for n in numbers))
    found = read_set(tmp_path)
    assert (found.layout, found.kind) == ("tongji", "crops")
    assert who(tmp_path)[:4] == [
        ("0", "0", "session1"), ("0", "0", "session1"), ("0", "1", "session1"), ("1", "2", "session1"),
    ]  # fmt: skip
    assert {session for _, _, session in who(tmp_path)} == {"session1", "session2"}


@pytest.mark.parametrize(
    ("folder", "kind"), [("Segmented/{}", "crops"), ("{} Hand", "hands")], ids=["crops", "photographs"]
)
def test_iitd_keeps_the_sides_in_folders(tmp_path: Path, folder: str, kind: str) -> None:
    lay(
        tmp_path,
        *(f"{folder.format(side)}/{n}.bmp" for side in ("Left", "Right") for n in ("001_1", "002_3")),
    )
    found = read_set(tmp_path)
    assert (found.layout, found.kind) == ("iitd", kind)
    assert sorted(who(tmp_path)) == [
        ("1", "1/left", "1"), ("1", "1/right", "1"), ("2", "2/left", "1"), ("2", "2/right", "1"),
    ]  # fmt: skip


def test_polyu_tells_the_session_by_a_letter(tmp_path: Path) -> None:
    lay(tmp_path, "PolyU_001_F_01.bmp", "PolyU_001_S_02.bmp", "PolyU_002_F_01.bmp", "PolyU_003_F_01.bmp")
    found = read_set(tmp_path)
    assert (found.layout, found.kind) == ("polyu", "crops")
    assert who(tmp_path) == [("1", "/1", "F"), ("1", "/1", "S"), ("1", "/2", "F"), ("2", "/3", "F")]


def test_polyu_s_bands_are_never_compared_as_one_palm(tmp_path: Path) -> None:
    lay(tmp_path, "Green/001/1_01_s.bmp", "Green/001/2_01_s.bmp", "NIR/001/1_01_s.bmp")
    assert who(tmp_path) == [("1", "Green/1", "1"), ("1", "Green/1", "2"), ("1", "NIR/1", "1")]


def test_casia_has_person_side_and_number_in_the_name(tmp_path: Path) -> None:
    lay(tmp_path, "0001/0001_m_l_01.jpg", "0001/0001_m_r_02.jpg", "0002/0002_f_l_08.jpg")
    found = read_set(tmp_path)
    assert (found.layout, found.kind) == ("casia", "hands")
    assert who(tmp_path) == [("0001", "0001/l", "1"), ("0001", "0001/r", "1"), ("0002", "0002/l", "1")]


def test_ntu_pi_has_person_side_and_class(tmp_path: Path) -> None:
    lay(tmp_path, "train/1-L1-Class1.jpg", "test/1-R2-Class2.jpg", "test/12-L4-Class390.jpg")
    assert read_set(tmp_path).layout == "ntu-pi"
    assert sorted(who(tmp_path)) == [("1", "1/l", "1"), ("1", "1/r", "1"), ("12", "12/l", "1")]


def test_the_plain_layout_is_person_hand_session_picture(tmp_path: Path) -> None:
    lay(tmp_path, "ana/L/monday/a.png", "ana/R/monday/b.png", "bia/L/tuesday/a.jpeg", "bia/notes.txt")
    assert read_set(tmp_path).layout == "plain"
    assert who(tmp_path) == [
        ("ana", "ana/L", "monday"), ("ana", "ana/R", "monday"), ("bia", "bia/L", "tuesday"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["00001.png", "PolyU_001_F_01.png", "0001_m_l_01.png", "1-L1-Class1.png"])
def test_people_in_folders_stay_apart_whatever_their_pictures_are_called(tmp_path: Path, name: str) -> None:
    people, hands, sessions = ("anna", "bob"), ("left", "right"), ("session1", "session2")
    lay(tmp_path, *(f"{a}/{hand}/{day}/{name}" for a in people for hand in hands for day in sessions))
    found = read_set(tmp_path)
    assert found.layout == "plain"
    assert {p.palm for p in found.pictures} == {"anna/left", "anna/right", "bob/left", "bob/right"}


@pytest.mark.parametrize("second", ["00001.png", "00011.png"], ids=["numbers anew", "numbers go on"])
def test_one_session_in_several_folders_is_not_tongji(tmp_path: Path, second: str) -> None:
    """Neither with a hand in words that nobody knows here nor beside a stray picture."""
    lay(tmp_path, "anna/esquerda/session1/00001.png", f"bia/esquerda/Session1/{second}", "00001.png")
    assert who(tmp_path) == [("anna", "anna/esquerda", "session1"), ("bia", "bia/esquerda", "Session1")]
    lay(tmp_path / "apart", "anna/session1/00001.png", f"bia/session1/{second}")
    with pytest.raises(EvaluationSetError, match="name the layout"):
        read_set(tmp_path / "apart")


def test_the_first_people_are_whole_people(tmp_path: Path) -> None:
    lay(tmp_path, *(f"{who}/L/1/{n}.png" for who in "abc" for n in "12"))
    assert [p.person for p in first_people(read_set(tmp_path), 2).pictures] == ["a", "a", "b", "b"]


def test_what_is_no_set_is_refused_with_the_way_on(tmp_path: Path) -> None:
    with pytest.raises(EvaluationSetError, match="no folder"):
        read_set(tmp_path / "absent")
    (tmp_path / "linked").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(EvaluationSetError, match=r"no pictures .*links to folders are not entered"):
        read_set(tmp_path)
    lay(tmp_path, "holiday.jpg", "garden.jpg")
    with pytest.raises(EvaluationSetError, match="person/hand/session/picture"):
        read_set(tmp_path)
