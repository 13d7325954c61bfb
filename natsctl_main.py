"""The entry point of the `natsctl` program.

Until a command runs, SIGINT ends the process at once and without a traceback. The module stands
outside the package so that the signal handler is set before any module of the package is loaded.
"""

import _signal  # type: ignore[import-not-found, unused-ignore]  # `signal` takes longer to load


def main() -> None:
    """Run the command line and exit."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from natsctl.cli.main import main as run  # noqa: PLC0415 - the signal handler is set first

    run()
