"""An editor that follows a script instead of a person."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Step = Mapping[str, Any]


class Editor:
    """The program for `EDITOR`. It does one step of its script each time it is opened.

    The fields of a step are optional: `replace` maps old texts to new ones, `write` is the new
    content of the file, `meanwhile` is a natsctl command that runs first, and `exits` is the exit
    status.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def command(self) -> str:
        """The value for the variable `EDITOR`."""
        return shlex.join((sys.executable, "-IS", __file__, str(self._folder)))

    @property
    def seen(self) -> list[str]:
        """The content of the file at each start of the editor."""
        return [file.read_text() for file in sorted(self._folder.glob("seen-*"))]

    def set_steps(self, *steps: Step) -> None:
        (self._folder / "steps").write_text(json.dumps(steps))


def do_next_step(folder: Path, file: Path) -> int:
    """Do the next step of the script, and return the exit status."""
    step, *later_steps = json.loads((folder / "steps").read_text())
    (folder / "steps").write_text(json.dumps(later_steps))
    text = file.read_text()
    (folder / f"seen-{len(list(folder.glob('seen-*')))}").write_text(text)
    assert file.stat().st_mode & 0o077 == 0
    if "meanwhile" in step:
        natsctl = (sys.executable, "-IS", str(Path(__file__).with_name("forked_command.py")))
        subprocess.run([*natsctl, *step["meanwhile"]], check=True, stdout=subprocess.DEVNULL)
    for old, new in step.get("replace", {}).items():
        assert old in text, text
        text = text.replace(old, new)
    file.write_text(step.get("write", text))
    return int(step.get("exits", 0))


if __name__ == "__main__":
    sys.exit(do_next_step(Path(sys.argv[1]), Path(sys.argv[2])))
