"""Checks the files of a release: `python tools/check_dist.py dist/*`.

It installs each file into an empty virtual environment, prints an example controller there, runs it
with a private nats-server, and waits until it has made a route for a greeting.
"""

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from daemon import WAIT_S, running  # type: ignore[import-not-found]  # beside this script

GREETING = '{"spec": {"text": "hi"}}'


def main() -> None:
    """Check every file that is given on the command line."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            _check(Path(name).resolve(), Path(folder))
        sys.stdout.write(f"{name}: an empty environment runs the example of the README\n")


def _check(file: Path, home: Path) -> None:
    venv.create(home / "venv", with_pip=True)
    binaries = home / "venv" / "bin"
    natsctl = binaries / "natsctl"
    _run(binaries / "pip", "install", "--quiet", f"{file}[embedded]", folder=home)
    (home / "greetings.py").write_text(_run(natsctl, "example", "greetings", folder=home))
    command = (natsctl, "run", "--embedded", "--port", "0", "-c", "greetings:Greetings")
    log = home / "daemon.log"
    with running(command, log=log, folder=home, environ=_environ()) as server:
        _run(natsctl, "put", "greetings", "shop", GREETING, "--server", server, folder=home)
        deadline = time.monotonic() + WAIT_S
        while "shop" not in _run(natsctl, "list", "routes", "--server", server, folder=home):
            if time.monotonic() > deadline:
                sys.exit(f"the controller made no route:\n{log.read_text()}")
            time.sleep(0.1)


def _run(*words: str | Path, folder: Path) -> str:
    completed = subprocess.run(
        words, cwd=folder, env=_environ(), capture_output=True, text=True, check=False
    )
    if completed.returncode:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def _environ() -> dict[str, str]:
    """Return the environment without the variables of Python and natsctl."""
    prefixes = ("PYTHON", "NATSCTL_", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(prefixes)}


if __name__ == "__main__":
    main()
