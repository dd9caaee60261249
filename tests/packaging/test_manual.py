"""The manual pages as a reader meets them."""

import argparse
import re
import shutil
import subprocess

import click
import pytest

from tools.rig.packaging import documents, manual

EPOCH = 1_800_000_000


@click.command()
@click.option("--gate-id", required=True, help="Where it stands; it's 'here'.")
@click.argument("file")
def tell(gate_id: str, file: str) -> None:
    """Tell.

    .A line that begins with a point, a back\\slash and `ticks`.

    \b
    kept  as
      it is
    """
    click.echo(f"{gate_id} {file}")


def shown(page: str) -> str:
    """The page as man shows it, without any warning of the formatter."""
    if shutil.which("groff") is None:
        pytest.skip("needs groff (apt install groff-base)")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=100n", "-K", "utf8"],
        input=page, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_text_survives_the_formatter() -> None:
    page = shown(manual.of_click(tell, "tell", "1.0-1", EPOCH)["tell.1"])
    assert ".A line that begins with a point, a back\\slash and `ticks`." in page
    assert "       kept  as\n         it is\n" in page
    assert "tell [OPTIONS] FILE" in page
    assert "--gate-id TEXT" in page
    assert "it's 'here'" in page
    assert "2027-01-15" in page


def test_options_of_a_daemon_are_all_there() -> None:
    parser = argparse.ArgumentParser(prog="guard", description="Guards.")
    parser.add_argument(
        "--a-rather-long-option-name", help="does something that takes more than one line to tell " * 2
    )
    parser.add_argument("--short", action="store_true", help="is short")
    page = shown(manual.of_argparse(parser, "1.0-1", EPOCH)["guard.1"])
    assert "--a-rather-long-option-name A_RATHER_LONG_OPTION_NAME\n" in page
    assert "--short\n              is short" in page
    assert "guard.service" in page


def test_every_page_is_sound() -> None:
    for page in documents.manual_pages("1.0-1", EPOCH).values():
        assert "EXIT STATUS" in shown(page)
        break
    names = documents.manual_pages("1.0-1", EPOCH)
    joined = "\n".join(names.values())
    shown(joined)


def test_the_pages_in_portuguese() -> None:
    portuguese = documents.portuguese_pages("1.0-1", EPOCH)
    english = documents.manual_pages("1.0-1", EPOCH)
    assert portuguese.keys() == {name for name in english if name.startswith("palmctl")}
    page = shown(portuguese["palmctl-doctor.1"])
    assert "CÓDIGOS DE SAÍDA" in page and "Mostra todos os resultados como um objeto JSON." in page
    assert not re.search(r"\b(the|of|is)\b", page)
    assert "Print all findings as one JSON object." in shown(english["palmctl-doctor.1"])
