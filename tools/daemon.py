"""Runs `natsctl run` for a tool, until the controllers sync."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60.0


@contextmanager
def running(
    command: Sequence[str | Path], *, log: Path, folder: Path, environ: Mapping[str, str]
) -> Iterator[str]:
    """Run *command* in *folder* while the context lasts; yield the address of its server.

    Exits with the daemon's log if the daemon does not sync within `WAIT_S` seconds.
    """
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environ)
    try:
        deadline = time.monotonic() + WAIT_S
        while "syncing" not in log.read_text():
            if daemon.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the daemon did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield re.findall(r"nats://[\d.:]+", log.read_text())[0]
    finally:
        daemon.terminate()
        daemon.wait(WAIT_S)
