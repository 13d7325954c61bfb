"""Child processes that end with the test process."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Ask the kernel to kill this forked process when the thread that forked it ends.

    A `preexec_fn` of `subprocess.Popen`.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
