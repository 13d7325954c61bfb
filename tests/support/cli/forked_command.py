"""Runs as `natsctl` or `python` in a shell: the fork server of the test process runs the command.

    python -IS tests/support/cli/forked_command.py PROGRAM ARGUMENT...

PROGRAM is `natsctl`, or a Python file. The environment variable FORK_SERVER is the address of the
fork server. The command gets this process's arguments, folder, environment, input, outputs and
signals, and this process ends as the command ends.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys
from _json import encode_basestring_ascii as quoted

# `json`, `signal`, `socket` and `pathlib` take longer to import than all else takes here.
VARIABLE = "FORK_SERVER"
FORWARDED = (_signal.SIGINT, _signal.SIGTERM)


def main() -> int:
    """Run the command, and return its exit status."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, FORWARDED)  # until the command's id is known
    environ = os.environ
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    control.connect(f"\0{environ[VARIABLE]}")
    words = ", ".join(map(quoted, sys.argv[1:]))
    variables = ", ".join(f"{quoted(name)}: {quoted(environ[name])}" for name in environ)
    folder = quoted(os.getcwd())  # noqa: PTH109 - see above
    request = f'{{"arguments": [{words}], "folder": {folder}, "environ": {{{variables}}}}}'
    own_end, other_end = _socket.socketpair()
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, other_end.fileno()))
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)
    control.sendmsg([request.encode()], [rights])
    other_end.close()
    report = os.fdopen(own_end.detach(), "rb")
    pid = int(report.readline())
    for number in FORWARDED:
        _signal.signal(number, lambda received, _: _send(pid, received))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, FORWARDED)
    status = os.waitstatus_to_exitcode(int(report.readline()))
    return status if status >= 0 else 128 - status


def _send(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - see above
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # the fork server has waited for it


if __name__ == "__main__":
    sys.exit(main())
