"""Child processes that end with the test process."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Ask the kernel to kill this forked process when the thread that forked it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def dying_with_parent(*command: str) -> list[str]:
    """Return a command that the kernel kills when the thread that starts it ends.

    `setpriv` asks for that, and executes the command. A `preexec_fn` of `subprocess.Popen` would
    copy the page tables of the test process, which takes 15 ms.
    """
    return ["setpriv", "--pdeathsig", "KILL", *command]
