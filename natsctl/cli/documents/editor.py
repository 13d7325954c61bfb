"""A file that a person edits, in the editor that they like."""

import asyncio
import os
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from natsctl.cli.output.terminal import say
from natsctl.errors import NatsctlError, UsageError

VARIABLES = ("VISUAL", "EDITOR")
USUAL = "vi"


def editor_words() -> list[str]:
    """Return the words of the command that is the editor; raises `UsageError` for none."""
    named = next(((name, os.environ[name]) for name in VARIABLES if os.environ.get(name)), None)
    variable, text = named or ("", USUAL)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variable} is {text!r}, which is not a command: {error}") from error
    return words or [USUAL]


class Sheet:
    """A file that only we can read, gone at the end of the context unless it is to be kept."""

    def __init__(self, editor: Sequence[str], *, prefix: str) -> None:
        self._editor = editor
        self._prefix = prefix.replace("/", "_") + "-"
        self._kept = False
        self._file = Path()

    def __enter__(self) -> Self:
        made, name = tempfile.mkstemp(prefix=self._prefix, suffix=".yaml")
        os.close(made)
        self._file = Path(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._kept:
            self._file.unlink(missing_ok=True)

    async def edited(self, text: str) -> str:
        """Have a person edit *text*; return what they make of it.

        Raises `UsageError` where there is no such editor, `NatsctlError` where it fails, and where
        what it leaves is not text; what it has written is kept then.
        """
        self._file.write_text(text, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*self._editor, str(self._file))
        except OSError as error:
            raise UsageError(
                f"the editor {self._editor[0]!r} cannot be run ({error.strerror}): name another "
                f"in {VARIABLES[-1]}"
            ) from error
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if status:
            self._keep_changed(text)
            raise NatsctlError(f"the editor ended with status {status}: nothing was stored")
        try:
            return self._file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._keep_changed(text)
            raise NatsctlError(f"what the editor has left cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        """Keep *text* in the file, and say where it is."""
        self._file.write_text(f"{text}\n", "utf-8")
        self._keep()

    def _keep_changed(self, shown: str) -> None:
        with suppress(OSError):
            if self._file.read_bytes() != shown.encode():
                self._keep()

    def _keep(self) -> None:
        self._kept = True
        say(f"what you wrote is kept in {self._file}")
