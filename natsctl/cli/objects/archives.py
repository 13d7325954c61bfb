"""Files of backups: written whole or not at all, read more than once."""

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
from natsctl.jetstream.bucket.archive import Contents, contents

_GZIP = b"\x1f\x8b"


@contextmanager
def written(name: str) -> Iterator[BinaryIO]:
    """Give a file that is called *name* at the end of the context, unless the context fails.

    A name that ends with `.gz` has it compressed; `-` is standard output. Raises `UsageError` if it
    cannot be written.
    """
    if name == "-":
        if sys.stdout.isatty():
            raise UsageError("standard output is a terminal: say -o FILE, or redirect it")
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
    """Give a new file beside *path*, which takes its place when it is complete and stored."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Give a file that can be read again; `-` is standard input. It may be compressed.

    Raises `UsageError` if it cannot be read.
    """
    with tempfile.TemporaryFile() as copy:
        try:
            if name == "-":
                shutil.copyfileobj(sys.stdin.buffer, copy)
                yield _plain(copy)
            else:
                with Path(name).open("rb") as file:
                    yield _plain(file)
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror}") from error


def _plain(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file


def read(file: BinaryIO, name: str) -> Contents:
    """Return what the file has, and go back to its beginning; raises `UsageError` that names it."""
    try:
        found = contents(file)
    except UsageError as error:
        raise UsageError(f"{'standard input' if name == '-' else name}: {error}") from error
    file.seek(0)
    return found
