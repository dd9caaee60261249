"""The Portuguese of `palmctl`: nothing is missing, only words change, and a shell's language counts."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from click.testing import CliRunner

from device.doctor.examine import CHECKS
from tests.device.status_makers import some_status
from tests.device.whole_device import Device, make_device
from tools.palmctl.language import FOLDER, MessageCatalogue, MessageForm, read_catalogue
from tools.palmctl.main import main
from tools.rig.messages import MO, PO, collected, mo_bytes, po_text, read_po, wrong_places

TRANSLATIONS = read_po(PO.read_text(encoding="utf-8"))
CATALOGUE = MessageCatalogue(TRANSLATIONS)
NUMBERS = re.compile(r"[,.0-9]*[,dfg]")
LETTERS = re.compile(r"[A-Za-zÀ-ÿ]")


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    return collected()


def test_every_message_is_translated(messages: dict[str, str]) -> None:
    assert [message for message in messages if not TRANSLATIONS.get(message)] == [], "make messages"


def test_the_catalogue_is_that_of_the_source(messages: dict[str, str]) -> None:
    text = PO.read_text(encoding="utf-8")
    assert text == po_text(messages, TRANSLATIONS), "make messages"
    assert "fuzzy" not in text
    assert MO.read_bytes() == mo_bytes(TRANSLATIONS), "make messages"


def test_translations_have_the_places_of_their_messages() -> None:
    assert [m for m, translation in TRANSLATIONS.items() if wrong_places(m, translation)] == []


def filled(text: str, values: dict[str, str]) -> str:
    parts = ((words, values[name] if name else "") for words, name, _, _ in Formatter().parse(text))
    return "".join(words + value for words, value in parts)


def test_messages_with_values_are_found_again(messages: dict[str, str]) -> None:
    """No other message takes its place, the values are where they belong, numbers as Brazil writes them."""
    for message, place in messages.items():
        if "{" not in message or place == "click":
            continue
        english: dict[str, str] = {}
        portuguese: dict[str, str] = {}
        for number, (_, name, spec, _) in enumerate(Formatter().parse(message), start=1):
            if name and name not in english:
                is_number = bool(spec and NUMBERS.fullmatch(spec))
                english[name] = f"{number},234.5" if is_number else f"value{number}"
                portuguese[name] = f"{number}.234,5" if is_number else f"value{number}"
        expected = filled(TRANSLATIONS[message], portuguese)
        assert CATALOGUE.translated(filled(message, english)) == expected, message


def test_values_and_sentences_are_translated_too() -> None:
    told = CATALOGUE.translated("/dev/ttyACM0 is absent; ports here: none at all")
    assert told == "/dev/ttyACM0 não existe; portas nesta placa: nenhuma"
    assert CATALOGUE.translated(
        "/etc/d.toml:4: [camera] fps: expected a whole number from 1 to 240, found a string"
    ) == ("/etc/d.toml:4: [camera] fps: esperado um número inteiro de 1 a 240, encontrado um texto")


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{0}", "gate-7", "a; b", "x: y", "unknown; words: here", "\n"]
)
def test_a_text_that_is_no_message_stays(text: str) -> None:
    assert CATALOGUE.translated(text) == text


def test_a_long_text_costs_little() -> None:
    begun = os.times().user
    for text in ("expected " * 100_000, "; " * 5_000, ": " * 5_000, "\n" * 5_000, "x" * 999 + "; is absent"):
        CATALOGUE.translated(text)
    assert os.times().user - begun < 5


def test_a_form_names_its_numbers() -> None:
    form = MessageForm("{left:,} MiB of {name}", "")
    assert form.numbers == {"left"}
    assert form.values("1,024 MiB of /srv") == {"left": "1,024", "name": "/srv"}
    assert form.values("many MiB of /srv") is None


def shell(*words: str, config: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`palmctl` as a login on a Brazilian board has it."""
    language = {"LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"}
    env = {name: value for name, value in os.environ.items() if name not in language} | environment
    place = ["--config", str(config)] if config else []
    command = [str(Path(sys.executable).with_name("palmctl")), *words, *place]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=100)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(tmp_path_factory.mktemp("language"))


def test_doctor_and_status_of_a_serving_device(device: Device) -> None:
    config, brazil = device.board.config_path, "pt_BR.UTF-8"
    with device.running():
        doctor = shell("doctor", config=config, LANG=brazil)
        in_json = shell("doctor", "--json", "provisioned", "cable", config=config, LANG=brazil)
        status = {name: shell("status", config=config, LANG=name) for name in (brazil, "C.UTF-8")}
    lines = doctor.stdout.splitlines()
    assert [line.split()[1] for line in lines if line[:1] in "✓!✗·" and line] == list(CHECKS)
    assert "em operação" in doctor.stdout and "em ordem" in lines[-1]
    assert not re.search(r"\b(the|is|may|not|run|see)\b", doctor.stdout), doctor.stdout
    findings = json.loads(in_json.stdout)["findings"]
    assert [finding["name"] for finding in findings] == ["provisioned", "cable"]
    assert [finding["result"] for finding in findings] == ["ok", "fail"]
    assert findings[1]["todo"] == "plug the cable in, or correct [link] port"
    assert (doctor.returncode, in_json.returncode) == (1, 1)
    assert status[brazil].returncode == status["C.UTF-8"].returncode == 0
    assert "  galeria   3 modelos biométricos" in status[brazil].stdout
    assert not re.search(r"\b(the|is|may|not|see)\b", status[brazil].stdout), status[brazil].stdout


def test_a_palmd_that_does_not_run_is_said_in_portuguese(device: Device, tmp_path: Path) -> None:
    config = tmp_path / "device.toml"
    config.write_text(device.board.config_path.read_text().replace("/run", "/none"))
    said = "nada responde em {}/none/control/sock (não existe); o palmd está em execução?"
    for words in (("status",), ("doctor", "daemon")):
        done = shell(*words, config=config, LANG="pt_BR.UTF-8")
        assert said.format(device.folder) in done.stdout + done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "pt_BR.UTF-8"},
        {"LC_ALL": "pt_BR.UTF-8", "LANG": "C"},
        {"LC_MESSAGES": "pt_BR.UTF-8", "LANG": "en_US.UTF-8"},
        {"LANGUAGE": "pt_BR:en", "LC_ALL": "en_US.UTF-8"},
    ],
    ids=str,
)
def test_the_variables_of_gettext(environment: dict[str, Any]) -> None:
    assert shell("--help", **environment).stdout.startswith("Uso: palmctl")


@pytest.mark.parametrize("environment", [{}, {"LANG": "C.UTF-8"}, {"LANG": "de_DE.UTF-8"}], ids=str)
def test_english_everywhere_else(environment: dict[str, Any]) -> None:
    assert shell("--help", **environment).stdout.startswith("Usage: palmctl")


def test_the_option_is_above_the_variables() -> None:
    assert "Opções:" in shell("--lang", "pt-BR", "provision", "--help", LANG="C.UTF-8").stdout
    assert "Opções:" in shell("--lang=pt-BR", "provision", "--help").stdout
    assert "Options:" in shell("--lang", "en", "provision", "--help", LANG="pt_BR.UTF-8").stdout
    assert shell("--lang", "xx", "status").returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("provision",), "esperado um modo de se tornar um dispositivo"),
        (("status", "--nothing"), "Não existe a opção '--nothing'."),
        (("statuss",), "Não existe o comando 'statuss'. Você quis dizer 'status'?"),
        (("doctor", "lamp"), "nenhuma verificação se chama lamp"),
        (("status", "--every", "0"), "não está no intervalo"),
        (("enrol", "--language", "fr"), "'fr' não é um destes"),
        (("config", "check", "--config", "/nonexistent/d.toml"), "não é possível ler (não existe)"),
        (("config", "check", "--config", "/"), "esperado um arquivo comum, encontrado uma pasta"),
    ],
    ids=" ".join,
)
def test_errors_of_the_command_line(words: tuple[str, ...], said: str) -> None:
    portuguese, in_json = (shell(*words, *more, LANG="pt_BR.UTF-8") for more in ((), ("--json",)))
    english, english_json = (
        CliRunner().invoke(main, [*words, *more], prog_name="palmctl") for more in ((), ("--json",))
    )
    assert said in portuguese.stderr
    assert portuguese.returncode == english.exit_code != 0
    assert in_json.stdout == english_json.stdout and json.loads(in_json.stdout)["error"]["message"]


def test_a_member_that_was_mistyped_is_named_in_portuguese(device: Device) -> None:
    done = shell("config", "set", "camera.fsp", "3", config=device.board.config_path, LANG="pt_BR.UTF-8")
    assert "camera.fsp não é um item da configuração (você quis dizer camera.fps?); veja: " in done.stderr


def test_json_is_the_same_in_every_language(device: Device) -> None:
    config = device.board.config_path
    for words in (("config", "show"), ("config", "check"), ("model", "check"), ("status",)):
        place = () if words[0] == "model" else ("--config", str(config))
        portuguese = shell(*words, "--json", *place, LANG="pt_BR.UTF-8")
        english = CliRunner().invoke(main, [*words, "--json", *place])
        assert (portuguese.stdout, portuguese.returncode) == (english.stdout, english.exit_code)


def test_a_catalogue_is_read_in_no_time() -> None:
    begun = os.times().user
    for _ in range(20):
        read_catalogue(FOLDER / "pt_BR/LC_MESSAGES/palmctl.mo")
    assert (os.times().user - begun) / 20 < 0.05  # 3 ms on a quiet machine


def test_a_status_has_no_english_line_left() -> None:
    from tools.palmctl import language
    from tools.palmctl.commands.status import lines

    english = lines(some_status())
    try:
        language.choose_language("pt-BR", as_json=False)
        portuguese = lines(some_status())
    finally:
        language.choose_language("en", as_json=False)
    assert len(portuguese) == len(english)
    assert all(LETTERS.search(line) for line in portuguese)
    assert portuguese[0] != english[0] and not any("  gallery " in line for line in portuguese)


def test_provision_writes_its_request_in_portuguese(tmp_path: Path) -> None:
    words = ["provision", "--offline-bundle", str(tmp_path / "reg.json"), "--device-id", "gate-7"]
    words += ["--gate-id", "g7", "--dbd-id", "d7", "--state-dir", str(tmp_path / "state")]
    words += ["--runtime-dir", str(tmp_path / "run"), "--config", str(tmp_path / "device.toml")]
    done = shell(*words, LANG="pt_BR.UTF-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gate-7 pediu para ser registrado.\n  pedido          /")
    assert "(dê esta chave ao validador)" in done.stdout and "\n  código da chave " in done.stdout
    assert done.stderr.endswith("Depois, aqui: palmctl provision --offline-bundle FILE --root-kid KID\n")
    again = [shell(*words, "--json", LANG=name) for name in ("pt_BR.UTF-8", "C.UTF-8")]
    assert again[0].stdout == again[1].stdout and json.loads(again[0].stdout)["keys_made"] is False


def test_provision_asks_on_a_terminal_in_portuguese(tmp_path: Path) -> None:
    inner, outer = pty.openpty()
    env = os.environ | {"LANGUAGE": "pt_BR", "PALM_ACCESS_CONFIG": str(tmp_path / "device.toml")}
    command = [str(Path(sys.executable).with_name("palmctl")), "provision", "--string-stdin"]
    process = subprocess.Popen(
        command, stdin=outer, stdout=outer, stderr=outer, env=env, start_new_session=True
    )
    os.close(outer)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's word for the end of a terminal
        while more := os.read(inner, 4096):
            shown += more
            if shown.endswith(b": "):
                os.write(inner, b"not a string\n")
    os.close(inner)
    assert process.wait(60) == 1
    said = shown.decode()
    assert "String de provisionamento: " in said
    assert "palmctl: esperada uma string de provisionamento, que começa com " in said
    assert "encontrada nenhuma; copie de novo por inteiro" in said
