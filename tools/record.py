"""Records docs/pictures/demo.svg from a real run of natsctl: `python tools/record.py`.

It starts a private nats-server with the example controller, types the commands below, and keeps
commands and output as a picture of a terminal.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

from daemon import WAIT_S, running  # type: ignore[import-not-found]  # beside this script
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "demo.svg"
NATSCTL = (sys.executable, "-m", "natsctl")
RUN = "run --embedded --controller controllers.greetings:Greetings --port 0"
STEPS = (
    ("Store an object in a NATS KV bucket. The controller makes a route for it.", None),
    ("""put greetings shop '{"spec": {"text": "hi"}}'""", "created"),
    ("get routes", "shop"),
    ("Delete the route. The controller makes it again.", None),
    ("delete routes shop", ""),
    ("get routes", "shop"),
    ("Delete the greeting. The controller deletes its route.", None),
    ("delete greetings shop", ""),
    ("get routes -o name", "^$"),
)


def main() -> None:
    """Record the picture."""
    console = Console(record=True, width=78, file=StringIO(), force_terminal=True)
    command = (*NATSCTL, *RUN.split())
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, log=Path(folder, "daemon.log"), folder=ROOT, environ=os.environ) as server,
    ):
        environ = {**os.environ, "NATSCTL_SERVER": server, "NO_COLOR": "1", "COLUMNS": "78"}
        for text, shows in STEPS:
            if shows is None:
                console.print(Text(f"# {text}", "bright_cyan"), soft_wrap=True)
            else:
                console.print(Text("$ ", "green") + Text(f"natsctl {text}", "bold"), soft_wrap=True)
                console.print(Text(_output(text, shows, environ)), soft_wrap=True)
    svg = console.export_svg(title="natsctl", theme=MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # no font from elsewhere
    PICTURE.write_text(re.sub(r"terminal-\d+", "terminal", svg) + "\n")


def _output(command: str, shows: str, environ: dict[str, str]) -> str:
    """Return the output of a command, once the output contains *shows*."""
    arguments = shlex.split(command)
    deadline = time.monotonic() + WAIT_S
    while True:
        completed = subprocess.run(
            (*NATSCTL, *arguments), capture_output=True, text=True, check=True, env=environ
        )
        output = completed.stdout.rstrip()
        if re.search(shows, output) or time.monotonic() > deadline:
            return output
        time.sleep(0.1)


if __name__ == "__main__":
    main()
