"""Ports of 127.0.0.1 that no other test process uses."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

PORTS = 200  # reserved by each process: enough for its servers, and a hundred processes fit


_claims: list[socket.socket] = []


def _claimed() -> range:
    """Reserve a range of ports that no other test process uses.

    The range is below the ports that the kernel gives to clients: a client that connects to such a
    port can connect to itself if no server listens there.
    """
    for first in range(12_000, 32_000, PORTS):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0natsctl tests: ports from {first}")  # fails if another process has it
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            return range(first, first + PORTS)
    raise AssertionError("too many tests are run at the same time")


@cache
def _ports(_pid: int) -> Iterator[int]:
    """Return the ports of this process. A forked process reserves another range."""
    return itertools.cycle(_claimed())


def free_port() -> int:
    for port in _ports(os.getpid()):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError
