"""The places of keys in a work queue, as tests compare them."""

from typing import Any, TypeAlias, TypeVar

import msgspec

from natsctl.core.workqueue import Place as WorkPlace
from natsctl.core.workqueue import Priority, Work, WorkQueue

K = TypeVar("K")


class Waiting(msgspec.Struct, frozen=True):
    until: float


class Ready(msgspec.Struct, frozen=True):
    since: float
    priority: Priority


class Claimed(msgspec.Struct, frozen=True):
    """A key that a worker has since a loop time, and the priority with which it was taken."""

    since: float
    priority: Priority


Place: TypeAlias = Waiting | Ready | Claimed


def place(queue: WorkQueue[Any], key: Any) -> Place | None:
    work = queue.work(key)
    return None if work is None else _place_of(work)


def places(queue: WorkQueue[K], number: int) -> list[tuple[K, Place]]:
    return [(work.key, _place_of(work)) for work in queue.first(number)]


async def take(queue: WorkQueue[K]) -> K:
    return (await queue.take()).key


def take_nowait(queue: WorkQueue[K]) -> K | None:
    work = queue.take_nowait()
    return None if work is None else work.key


def _place_of(work: Work[Any]) -> Place:
    if work.place is WorkPlace.WAITING:
        return Waiting(work.at)
    return (Ready if work.place is WorkPlace.READY else Claimed)(work.at, work.priority)
