"""An editor that a play tells what a person does in it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Step = Mapping[str, Any]


class Editor:
    """What `EDITOR` names: takes one step of a play each time it is opened.

    A step says what is done with the file: `replace` a text by another, `write` another text,
    leave it alone; whether a command is run `meanwhile`, as somebody else's; which status it
    `exits` with.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    @property
    def command(self) -> str:
        """The words that open it."""
        return shlex.join((sys.executable, __file__, str(self._folder)))

    @property
    def seen(self) -> list[str]:
        """What was in the file each time it was opened."""
        return [file.read_text() for file in sorted(self._folder.glob("seen-*"))]

    def plays(self, *steps: Step) -> None:
        (self._folder / "steps").write_text(json.dumps(steps))


def play(folder: Path, file: Path) -> int:
    """Take the next step; there must be one."""
    first, *rest = json.loads((folder / "steps").read_text())
    (folder / "steps").write_text(json.dumps(rest))
    text = file.read_text()
    (folder / f"seen-{len(list(folder.glob('seen-*')))}").write_text(text)
    assert file.stat().st_mode & 0o077 == 0
    if "meanwhile" in first:
        natsctl = (sys.executable, "-m", "natsctl", *first["meanwhile"])
        subprocess.run(natsctl, check=True, stdout=subprocess.DEVNULL)
    for old, new in first.get("replace", {}).items():
        assert old in text, text
        text = text.replace(old, new)
    file.write_text(first.get("write", text))
    return int(first.get("exits", 0))


if __name__ == "__main__":
    sys.exit(play(Path(sys.argv[1]), Path(sys.argv[2])))
