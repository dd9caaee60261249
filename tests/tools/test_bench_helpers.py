"""Helper processes of a bench that is killed end too."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = """
import time
from tools.rig.bench import {module}
with {module}.{helper}:
    print("inside", flush=True)
    time.sleep(600)
"""
HELPERS = {
    "link_rig": "peer('device')",
    "thin_clients": "beside(lambda ended: time.sleep(600))",
    "slow_cores": "slowed(0.95, [min(__import__('os').sched_getaffinity(0))])",
}


@pytest.mark.parametrize("module", HELPERS)
def test_a_helper_does_not_outlive_a_bench_that_is_killed(module: str) -> None:
    program = [sys.executable, "-c", BENCH.format(module=module, helper=HELPERS[module])]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        if not parent.stdout.readline():
            said = parent.communicate()[1]
            assert "run as root" in said, said
            pytest.skip("a real-time priority is not permitted here")
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert len(children) == 1
        helper = os.pidfd_open(int(children[0]))
        parent.kill()
    try:
        has_ended = bool(select.select([helper], [], [], 20)[0])
        if not has_ended:
            signal.pidfd_send_signal(helper, signal.SIGKILL)
        assert has_ended
    finally:
        os.close(helper)
