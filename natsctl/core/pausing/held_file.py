"""Notes the keys that workers hold in a file that survives the process.

The file is mapped into memory, so that a note costs no system call: the kernel keeps the pages of a
process that dies. A lock on the file shows that its process lives.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, Self

from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SLOT = 512  # bytes for the key of one worker; the first two are its length
LENGTH = 2
ENDING = ".held"

_LENGTHS = [size.to_bytes(LENGTH, "little") for size in range(SLOT)]

state_directory: ContextVar[Path | None] = ContextVar("state_directory", default=None)
"""The directory of the files; None if the process keeps none."""


class HeldFile:
    """The file of one sync loop, with a slot for each worker. `held_file` opens it."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped

    def slot(self, worker: int) -> "HeldSlot":
        """Return the slot of a worker, counted from 0."""
        return HeldSlot(self._mapped, worker * SLOT)


class HeldSlot:
    """The place in the file for the key that one worker holds; `with slot:` frees it at the end."""

    def __init__(self, mapped: mmap.mmap, start: int) -> None:
        self._mapped = mapped
        self._start = start
        self._key = start + LENGTH
        self._free = slice(start, self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def hold(self, key: str) -> None:
        """Note that the worker begins to sync the key."""
        data = key.encode()[: SLOT - LENGTH]
        size = len(data)
        self._mapped[self._start : self._key + size] = _LENGTHS[size] + data

    def release(self) -> None:
        """Note that the worker holds no key."""
        self._mapped[self._free] = _LENGTHS[0]


@contextmanager
def held_file(name: str, workers: int, process: str = "") -> Iterator[HeldFile | None]:
    """Open the file of the sync loop *name* while the context lasts, and delete it at the end.

    *process* is the name of this process, by default a new one. Yields None if the process has no
    state directory. If it cannot write there, its notes end with the process.
    """
    directory = state_directory.get()
    if directory is None or not name:
        yield None
        return
    path = directory / f"{name}.{process or process_name()}{ENDING}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _created(path, workers * SLOT)
    except OSError as error:
        log.warning("cannot note held keys: a key that kills the process is not found", error=error)
        with mmap.mmap(-1, workers * SLOT) as unnamed:
            yield HeldFile(unnamed)
        return
    with file, mmap.mmap(file.fileno(), workers * SLOT) as mapped:
        yield HeldFile(mapped)
        path.unlink(missing_ok=True)


def process_name() -> str:
    """Return a new name for this process, unique among all machines."""
    return f"{os.getpid()}-{os.urandom(8).hex()}"


def keys_of_dead(name: str) -> list[tuple[str, str]]:
    """Return the keys that dead processes held in the sync loop *name*, and delete their files.

    Each key comes with the name of its process.
    """
    directory = state_directory.get()
    if directory is None or not name:
        return []
    keys: list[tuple[str, str]] = []
    for path in sorted(directory.glob(f"{name}.*-*{ENDING}")):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the process lives
            if os.fstat(file.fileno()).st_nlink:
                process = path.name.removeprefix(f"{name}.").removesuffix(ENDING)
                keys += [(key, process) for key in _keys_in(file.read())]
                path.unlink(missing_ok=True)
    return keys


def _created(path: Path, size: int) -> BinaryIO:
    """Create and lock a file, which gets its name last, so that it never seems to be dead.

    A write to a mapped page without a block on the disk would kill the process, so the file has all
    its blocks from the beginning.
    """
    hidden = path.with_suffix(".new")
    try:
        hidden.write_bytes(bytes(size))
        file = hidden.open("r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            hidden.rename(path)
        except OSError:
            file.close()
            raise
    except OSError:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise
    return file


def _keys_in(data: bytes) -> Iterator[str]:
    for start in range(0, len(data) - SLOT + 1, SLOT):
        length = int.from_bytes(data[start : start + LENGTH], "little")
        if 0 < length <= SLOT - LENGTH:
            with suppress(UnicodeDecodeError):
                yield data[start + LENGTH : start + LENGTH + length].decode()
