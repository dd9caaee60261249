"""What tests of several rooms begin with."""

import subprocess
from pathlib import Path

import pytest

from tools.kit.c_validator.driver import SANITIZERS, NoCompilerError, build


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
