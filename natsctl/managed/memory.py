"""Notes what a reconciler remembers of an object, so that a replay begins with the same memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from natsctl.core.sync import current_tape
from natsctl.managed.creation.backoff import CreationBackoff
from natsctl.managed.creation.creation import Creation
from natsctl.managed.creation.links import CreationLink, Links
from natsctl.managed.creation.results import Results
from natsctl.managed.objects import Managed
from natsctl.model.store import Stored

NAME = "external memory"


class PendingResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a creation that could not be stored; see `Results`."""

    revision: int
    value: Raw
    annotations: dict[str, str]
    withdrawn: bool


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of one object."""

    link: CreationLink = CreationLink()  # the record of the link that was last seen
    link_revision: int | None = None  # the revision of that record; None if none was seen
    creation_waits: tuple[int, float] | None = None  # the revision and the seconds until a retry
    result: PendingResult | None = None  # the result that could not be stored
    deletion_age_s: float | None = None  # since the deletion was requested first


class ReconcilerMemory(msgspec.Struct, eq=False, kw_only=True):
    """The memory of a reconciler, by object.

    `deletions` has the times at which deletions of resources were requested first, `creations` the
    recent creations and the times at which they were seen first, by the event loop's clock. *makes*
    returns the managed object of a stored state.
    """

    backoff: CreationBackoff
    results: Results
    links: Links | None
    makes: Callable[[Stored], Managed[Any]]
    creations: dict[str, tuple[Creation, float]] = {}
    deletions: dict[str, float] = {}

    def seen_s(self, key: str, creation: Creation) -> float:
        """Return the seconds since this process saw the creation first, by the loop's clock."""
        known, since = self.creations.get(key, (None, 0.0))
        if known != creation:
            since = _now()
            self.creations[key] = creation, since
        return _now() - since

    async def noted(self, key: str) -> None:
        """Note the memory of the object on the tape of the sync, or restore the recorded one."""
        tape = current_tape()
        if tape is not None:
            await tape.remembered(
                NAME, lambda: self._memory(key), lambda memory: self._restore(key, memory)
            )

    def _memory(self, key: str) -> Memory:
        revision, link = (None, CreationLink()) if self.links is None else self.links.last_seen(key)
        pending = self.results.pending(key)
        result = None
        if pending is not None:
            managed, withdrawn = pending
            result = PendingResult(
                revision=managed.stored.revision,
                value=Raw(managed.stored.value),
                annotations=managed.annotations,
                withdrawn=withdrawn,
            )
        requested_at = self.deletions.get(key)
        return Memory(
            link=link,
            link_revision=revision,
            creation_waits=self.backoff.wait_of(key),
            result=result,
            deletion_age_s=None if requested_at is None else _now() - requested_at,
        )

    def _restore(self, key: str, memory: Memory) -> None:
        if self.links is not None and memory.link_revision is not None:
            self.links.see(key, memory.link_revision, memory.link)
        if memory.creation_waits is not None:
            self.backoff.wait(key, *memory.creation_waits)
        if memory.deletion_age_s is not None:
            self.deletions[key] = _now() - memory.deletion_age_s
        if memory.result is not None:
            result = memory.result
            managed = self.makes(Stored(key, result.revision, bytes(result.value)))
            managed.annotations = dict(result.annotations)
            managed.keep()
            self.results.expect(managed, withdrawn=result.withdrawn)


def _now() -> float:
    return asyncio.get_running_loop().time()
