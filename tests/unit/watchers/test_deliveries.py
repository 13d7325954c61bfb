"""What waits to be told is bounded, and nobody is told what is over."""

import asyncio

import pytest

from natsctl.core.queue.retry import give_up_after
from natsctl.core.queue.workqueue import Priority
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore
from natsctl.watchers.deliveries import Deliveries, Policies, Registration
from natsctl.watchers.merged_changes import ObjectChange
from tests.support.controllers.recording_watcher import SITES, Notes, site
from tests.support.eventually import eventually

STORE = MemoryStore(SITES)


def stored(key: str, says: str | None) -> Stored | None:
    return None if says is None else Stored(key, 1, site(says))


def tell(
    deliveries: Deliveries, key: str, before: str | None, after: str | None, **how: Registration
) -> None:
    news = ObjectChange(key, SITES, STORE, stored(key, before), stored(key, after))
    deliveries.add(news, priority=Priority.USER, **how)  # type: ignore[arg-type]


async def all_told(deliveries: Deliveries) -> None:
    task = asyncio.create_task(deliveries.loop("things", timeout_s=60).run(no_wait))
    await eventually(lambda: deliveries.queue.idle)
    deliveries.queue.shut_down(drain=False)
    await task


@pytest.fixture
def notes() -> Notes:
    return Notes()


def bounded(notes: Notes, changes_max: int) -> Deliveries:
    made = Deliveries("sites", Policies(None, give_up_after(0), None), changes_max=changes_max)
    made.registrations = (Registration(notes),)
    return made


async def test_up_to_the_bound_everything_is_told(notes: Notes) -> None:
    deliveries = bounded(notes, 3)
    tell(deliveries, "athens", None, "one")
    tell(deliveries, "athens", "one", "two")
    tell(deliveries, "athens", "two", "three")
    await all_told(deliveries)
    assert notes.told == ["add athens one", "update athens one two", "update athens two three"]


async def test_beyond_it_what_happens_to_one_object_becomes_one_thing(notes: Notes) -> None:
    deliveries = bounded(notes, 2)
    tell(deliveries, "athens", None, "one")
    tell(deliveries, "athens", "one", "two")
    for before, after in (("two", "three"), ("three", None), (None, "four"), ("four", "five")):
        tell(deliveries, "athens", before, after)
    tell(deliveries, "berlin", None, "one")
    await all_told(deliveries)
    assert notes.told == [
        "add athens one",
        "add berlin one",
        "delete athens three",
        "add athens five",
    ]


async def test_what_was_told_makes_room(notes: Notes) -> None:
    deliveries = bounded(notes, 2)
    task = asyncio.create_task(deliveries.loop("things", timeout_s=60).run(no_wait))
    for _ in range(3):
        tell(deliveries, "athens", None, "one")
        tell(deliveries, "athens", "one", "two")
        tell(deliveries, "athens", "two", "three")
        await asyncio.sleep(1)
    deliveries.queue.shut_down(drain=False)
    await task
    assert notes.told == ["add athens one", "update athens one three"] * 3


async def test_only_one_of_them_may_be_told(notes: Notes) -> None:
    deliveries = bounded(notes, 10)
    late = Notes()
    registration = Registration(late)
    deliveries.registrations = (*deliveries.registrations, registration)
    tell(deliveries, "athens", None, "one", to=(registration,))  # type: ignore[arg-type]
    await all_told(deliveries)
    assert (notes.told, late.told) == ([], ["add athens one"])


async def test_without_watchers_nothing_waits(notes: Notes) -> None:
    deliveries = bounded(notes, 10)
    deliveries.registrations = ()
    tell(deliveries, "athens", None, "one")
    assert deliveries.queue.idle


async def no_wait() -> None:
    """Be ready."""
