"""Opens a text in the user's editor."""

import asyncio
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from natsctl.cli.output.terminal import write_notice
from natsctl.errors import NatsctlError, UsageError

VARIABLES = ("VISUAL", "EDITOR")
DEFAULT = "vi"


def editor_command() -> list[str]:
    """Return the words of the editor's command line.

    Raises `UsageError` if the environment variable is not a valid command line.
    """
    named = next(((name, os.environ[name]) for name in VARIABLES if os.environ.get(name)), None)
    variable, text = named or ("", DEFAULT)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variable} is {text!r}, which is not a command: {error}") from error
    return words or [DEFAULT]


@contextmanager
def edited_file(command: Sequence[str], *, prefix: str) -> Iterator["EditedFile"]:
    """Create a temporary file that only this user can read, for the editor *command*.

    The file is deleted at the end of the context, unless it was kept.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{prefix.replace('/', '_')}-", suffix=".yaml")
    os.close(descriptor)
    file = EditedFile(command, Path(name))
    try:
        yield file
    finally:
        if not file.kept:
            file.path.unlink(missing_ok=True)


class EditedFile:
    """A temporary file and the editor that opens it; see `edited_file`."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self.path = path
        self.kept = False
        self._command = command

    async def edit(self, text: str) -> str:
        """Open *text* in the editor, and return the text when the editor has ended.

        Raises `UsageError` if the editor cannot be started, and `NatsctlError` if it fails or
        leaves a file that cannot be read. A changed file is kept then.
        """
        self.path.write_text(text, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*self._command, str(self.path))
        except OSError as error:
            raise UsageError(
                f"the editor {self._command[0]!r} cannot be run ({error.strerror}): name another "
                f"in {VARIABLES[-1]}"
            ) from error
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if status:
            self._keep_if_changed(text)
            raise NatsctlError(f"the editor ended with status {status}: nothing was stored")
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._keep_if_changed(text)
            raise NatsctlError(f"the edited file cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        """Write *text* to the file, and keep the file."""
        self.path.write_text(f"{text}\n", "utf-8")
        self._keep()

    def _keep_if_changed(self, original: str) -> None:
        with suppress(OSError):
            if self.path.read_bytes() != original.encode():
                self._keep()

    def _keep(self) -> None:
        self.kept = True
        write_notice(f"your text is kept in {self.path}")
