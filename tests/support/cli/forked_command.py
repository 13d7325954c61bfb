"""Runs as `natsctl` in a shell: the fork server of the test process runs the command.

    python -IS tests/support/cli/forked_command.py ARGUMENT...

The environment variable FORK_SERVER is the address of the fork server. The command gets this
process's arguments, folder, environment, input, outputs and signals, and this process ends as the
command ends.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "FORK_SERVER"
FORWARDED = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    """Run the command, and return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until the command's id is known
    environ = dict(os.environ)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(f"\0{environ.pop(VARIABLE)}")
    request = {"arguments": sys.argv[1:], "folder": str(Path.cwd()), "environ": environ}
    own_end, other_end = socket.socketpair()
    socket.send_fds(control, [json.dumps(request).encode()], [0, 1, 2, other_end.fileno()])
    other_end.close()
    report = own_end.makefile()
    pid = int(report.readline())
    for number in FORWARDED:
        signal.signal(number, lambda received, _: _send(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = os.waitstatus_to_exitcode(int(report.readline()))
    return status if status >= 0 else 128 - status


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # the fork server has waited for it
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
