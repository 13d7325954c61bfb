"""The `natsctl` program, as a terminal starts it.

This module stands outside the package, whose import takes a moment: an interrupt within that moment
ends the program without a traceback.
"""

import _signal  # the module `signal` takes a moment as well


def main() -> None:
    """Run the command line and exit."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from natsctl.cli.main import main as run  # noqa: PLC0415 - the guard above comes first

    run()
