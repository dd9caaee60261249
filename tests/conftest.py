"""What tests of several rooms begin with."""

import asyncio
import functools
import inspect
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tools.kit.c_validator.driver import SANITIZERS, NoCompilerError, build
from tools.rig.browser import Tab, browsing, find_chromium

# A machine with other work stops a test for longer than an example takes.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """A test that is a coroutine runs in a loop of its own."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = functools.wraps(test)(lambda **given: asyncio.run(test(**given)))


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("c") / "validator"
    try:
        build(path, *SANITIZERS)
    except NoCompilerError as error:
        pytest.skip(str(error))
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    return path


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("chromium is not installed")
    with browsing(chromium) as tab:
        yield tab
