"""Which keys this process syncs now, noted where the note outlives the process.

Each sync loop has a file that is mapped into memory, so a note costs no system call: the kernel
keeps the pages of a process that dies. A lock on the file shows that its process lives.

A key that may have killed an earlier process is synced while no other key of this process is. If
the process dies again, the files show whether that key was alone.
"""

import asyncio
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SLOT = 512  # bytes for the key of one worker; the first two are its length
LENGTH = 2
ENDING = ".held"
SEEN = ".seen"  # of a file whose keys were read, while other files of its process were not
ALONE_WITHIN_S = 5.0  # how long all other workers wait at a stretch, so that a key is alone
AGAIN_S = 15.0  # how long they then sync on, if the key wasn't alone within that time

_LENGTHS = [size.to_bytes(LENGTH, "little") for size in range(SLOT)]


class Left(msgspec.Struct, frozen=True):
    """The keys of one sync loop that a dead process was syncing."""

    process: str
    keys: tuple[str, ...]
    alone: bool  # whether it synced only one key


class ClaimedKeys:
    """The keys that all sync loops of this process are syncing.

    Without a *directory*, nothing is noted, and no key is a suspect.

    `wary` has whatever makes a worker ask before a sync: loops with suspects, and a key that is
    alone now. It's empty as long as no process has died.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.process = process_name()
        self.directory = directory
        self.wary: set[object] = set()
        self._claims: set[ClaimedKey] = set()
        self._alone: ClaimedKey | None = None
        self._not_before = 0.0  # the loop time at which a key may be alone again
        self._changed = asyncio.Event()
        self.on_disk = directory is not None
        if directory is not None:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                self._without_disk(error)

    def _without_disk(self, error: OSError) -> None:
        if self.on_disk:
            log.info("cannot write the state directory: claims are noted in NATS", error=error)
        self.on_disk = False

    @contextmanager
    def of_loop(self, name: str, workers: int) -> Iterator[list["ClaimedKey"]]:
        """Yield a claim for each worker of the sync loop *name*, or none without a directory.

        The file is deleted at the end of the context.
        """
        if self.directory is None or not name:
            yield []
            return
        path = self.directory / f"{name}.{self.process}{ENDING}"
        file = None
        if self.on_disk:
            try:
                file = _created(path, workers * SLOT)
            except OSError as error:
                self._without_disk(error)
        mapped = mmap.mmap(-1 if file is None else file.fileno(), workers * SLOT)
        claims = [ClaimedKey(self, mapped, worker * SLOT) for worker in range(workers)]
        self._claims.update(claims)
        try:
            yield claims
        finally:
            for claim in claims:
                claim.release()
            self._claims.difference_update(claims)
            if file is not None:
                path.unlink(missing_ok=True)
                file.close()

    def left_behind(self, name: str) -> list[Left]:
        """Return what dead processes left of the sync loop *name*, once: their files are deleted.

        Whether a key was alone depends on all files of its process. So a file stays until those of
        other loops are read, which may belong to other controllers.
        """
        if self.directory is None or not name:
            return []
        found = []
        for path in sorted(self.directory.glob(f"{name}.*-*{ENDING}")):
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while the process lives
                if not os.fstat(file.fileno()).st_nlink:
                    continue
                keys = tuple(_keys_in(file.read()))
                process = path.name.removeprefix(f"{name}.").removesuffix(ENDING)
                files = [
                    other
                    for suffix in (ENDING, SEEN)
                    for other in self.directory.glob(f"*.{process}{suffix}")
                ]
                count = sum(len(list(_keys_in(other.read_bytes()))) for other in files)
                found.append(Left(process, keys, alone=count == 1))
                if all(other == path or other.suffix == SEEN for other in files):
                    for other in files:
                        other.unlink(missing_ok=True)
                else:
                    path.rename(path.with_suffix(SEEN))
        return [left for left in found if left.keys]

    @property
    def busy(self) -> bool:
        """Whether any worker syncs a key."""
        return any(claim.busy for claim in self._claims)

    # ---- one key alone

    async def admit(self) -> None:
        """Wait until no key has to be alone."""
        while self._alone is not None:
            await self._next_change()

    async def alone(self, claim: "ClaimedKey") -> bool:
        """Wait until no other key is synced, and let none begin until the claim is released.

        Returns False if another key has to be alone, or if the others take too long: try again
        later, so that a sync that takes long doesn't hold up all keys.
        """
        now = asyncio.get_running_loop().time()
        if self._alone is not None or now < self._not_before:
            return False
        self._alone = claim
        self.wary.add(self)
        try:
            async with asyncio.timeout(ALONE_WITHIN_S):
                while self.busy:
                    await self._next_change()
        except BaseException as error:
            self.ended(claim)
            if isinstance(error, TimeoutError):
                self._not_before = now + ALONE_WITHIN_S + AGAIN_S
                return False
            raise
        return True

    def ended(self, claim: "ClaimedKey") -> None:
        """Note that the sync of a claim has ended."""
        if claim is self._alone:
            self._alone = None
            self.wary.discard(self)
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class ClaimedKey:
    """The place for the key that one worker syncs; `with claim:` frees it at the end."""

    def __init__(self, claims: ClaimedKeys, mapped: mmap.mmap, start: int) -> None:
        self._claims = claims
        self._wary = claims.wary
        self._mapped = mapped
        self._start = start
        self._key = start + LENGTH
        self._free = slice(start, self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    @property
    def busy(self) -> bool:
        """Whether the worker syncs a key."""
        return self._mapped[self._free] != _LENGTHS[0]

    def hold(self, key: str) -> None:
        """Note that the worker begins to sync the key."""
        data = key.encode()[: SLOT - LENGTH]
        size = len(data)
        self._mapped[self._start : self._key + size] = _LENGTHS[size] + data

    def release(self) -> None:
        """Note that the worker syncs no key."""
        self._mapped[self._free] = _LENGTHS[0]
        if self._wary:
            self._claims.ended(self)


current_claims: ContextVar[ClaimedKeys | None] = ContextVar("current_claims", default=None)
"""The claims of this process; None if it doesn't look for keys that kill it."""


def process_name() -> str:
    """Return a new name for this process, unique among all machines."""
    return f"{os.getpid()}-{os.urandom(8).hex()}"


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
