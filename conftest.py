"""What every test run begins with."""

import signal


def pytest_configure() -> None:
    # What a shell starts in the background has SIGINT ignored, and so has whatever that starts: the Ctrl-C of
    # a test would reach nobody.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
