"""Reads and writes the files of backups."""

import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from natsctl.cli.output.terminal import writing
from natsctl.errors import UsageError
from natsctl.jetstream.backup.archive import Contents, contents

_GZIP = b"\x1f\x8b"


@contextmanager
def new_archive(name: str) -> Iterator[BinaryIO]:
    """Open a new file, which gets its name at the end of the context, unless the context fails.

    The file is compressed if its name ends with `.gz`; `-` is standard output. Raises `UsageError`
    if the file cannot be written.
    """
    if name == "-":
        if sys.stdout.isatty():
            raise UsageError("standard output is a terminal: give -o FILE, or redirect the output")
        with writing():
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
    else:
        try:
            with _replacing(Path(name).resolve()) as file:
                yield file
        except OSError as error:
            raise UsageError(f"{name} cannot be written: {error.strerror}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside *path* that replaces *path* when it is complete and synced to disk."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a regular file")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def open_archive(name: str) -> Iterator[BinaryIO]:
    """Open a file, compressed or not, that can be read several times; `-` is standard input.

    Raises `UsageError` if the file cannot be read.
    """
    with tempfile.TemporaryFile() as copy:
        try:
            if name == "-":
                shutil.copyfileobj(sys.stdin.buffer, copy)
                yield _decompressed(copy)
            else:
                with Path(name).open("rb") as file:
                    yield _decompressed(file)
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror}") from error


def _decompressed(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    compressed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file


def check_contents(file: BinaryIO, name: str) -> Contents:
    """Return the contents of a backup, and rewind the file.

    Raises `UsageError` that names the file if the backup is invalid.
    """
    try:
        checked = contents(file)
    except UsageError as error:
        raise UsageError(f"{'standard input' if name == '-' else name}: {error}") from error
    file.seek(0)
    return checked
