"""What every test run begins with."""

import os
import signal
import sys

# Before anything imports NumPy, and for every program that a test starts, as palmd has it: threads that
# multiply matrices wait for each other where each of them uses every core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Compiled once, and not by each of the several hundred programs that the tests start, nor again in each run:
# images of containers are wont to set this.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tests read English; those of another language set it themselves.
os.environ["LANGUAGE"] = "en"


def pytest_configure() -> None:
    # What a shell starts in the background has SIGINT ignored, and so has whatever that starts: the Ctrl-C of
    # a test would reach nobody.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
