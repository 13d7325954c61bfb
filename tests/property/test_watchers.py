"""Whatever happens, in whatever order: watchers come to the newest state, and never go back."""

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from natsctl import ConflictError, NotFoundError, Retry, StoreTimeoutError
from natsctl.core.objects.finalizers import delete
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore
from natsctl.testing.time import VirtualTimeLoop
from natsctl.watchers import InformerController, OpinionatedWatcher, Snapshot
from tests.support.controllers.app_controller import SlowStore, SlowStores
from tests.support.controllers.recording_watcher import (
    SITES,
    Site,
    SiteSpec,
    change,
    put,
    site,
    text,
)

Step = tuple[Any, ...]

KEYS = st.sampled_from(["a", "b", "c.d"])
TEXTS = st.sampled_from(["one", "two"])

CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS, TEXTS),
    st.tuples(st.just("write a status"), KEYS, TEXTS),
    st.tuples(st.just("delete"), KEYS),
)
WRITING_OVER = st.tuples(st.just("put plainly"), KEYS, TEXTS)
DELETING_RAW = st.tuples(st.just("delete raw"), KEYS)
TROUBLE = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 1.0, 40.0])),
    st.tuples(st.just("break"), st.sampled_from([None, 0, 1, 3])),
    st.tuples(st.just("lag"), st.sampled_from([0.0, 0.02, 2.0])),
    st.tuples(st.just("refuse"), st.booleans()),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.just(("stop",)),
    st.just(("kill",)),
    st.just(("start",)),
)
STEPS = st.lists(st.one_of(CHANGES, WRITING_OVER, DELETING_RAW, TROUBLE), max_size=30)
PROTECTED_STEPS = st.one_of(
    st.lists(st.one_of(CHANGES, WRITING_OVER, TROUBLE), max_size=30),
    st.lists(st.one_of(CHANGES, DELETING_RAW, TROUBLE), max_size=30),
)


class Mirror:
    """Keeps what it is told, fails when it is told to, and notes what must not be."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.revisions: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.failures = 0
        self.inside: set[str] = set()
        self.wrong: list[str] = []

    async def add(self, new: Snapshot[Any]) -> None:
        await self.take(new, there=True)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self.take(new, there=True)

    async def delete(self, last: Snapshot[Any]) -> None:
        await self.take(last, there=False)

    async def take(self, seen: Snapshot[Any], *, there: bool) -> None:
        if seen.key in self.inside:
            self.wrong.append(f"{seen.key} was told twice at once")
        if seen.revision < self.newest.get(seen.key, 0):
            self.wrong.append(f"{seen.key} went back to {seen.revision}")
        self.inside.add(seen.key)
        try:
            await asyncio.sleep(0.01)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("told to")
            self.newest[seen.key] = seen.revision
            self.texts.pop(seen.key, None)
            self.revisions.pop(seen.key, None)
            if there:
                self.texts[seen.key] = text(seen)
                self.revisions[seen.key] = seen.revision
            await asyncio.sleep(0.01)
        finally:
            self.inside.discard(seen.key)


class World:
    """A store, and a controller that comes and goes; what is outside stays."""

    def __init__(self) -> None:
        self.stores = SlowStores()
        self.sites: SlowStore = self.stores.store(SITES)
        self.outside = Mirror()
        self.first, self.last = Mirror(), Mirror()
        self.controller: InformerController | None = None
        self.task: asyncio.Task[None] | None = None

    async def step(self, step: Step) -> None:
        match step:
            case ("wait", float(seconds)):
                await asyncio.sleep(seconds)
            case ("fail", int(times)):
                self.first.failures = self.last.failures = self.outside.failures = times
            case ("start",):
                await self.start()
            case ("stop" | "kill" as how,):
                await self.end(how)
            case ("break", breaks_after):
                self.sites.breaks_after = breaks_after
                self.sites.cut()
            case ("lag", float(seconds)):
                self.sites.lag_s = seconds
            case ("refuse", bool(refuses)):
                self.sites.fail(StoreTimeoutError("told to") if refuses else None)
            case (str(), str(), *_):
                await self.change(step)

    async def change(self, step: Step) -> None:
        sites: MemoryStore = self.sites
        there = set(sites.keys())
        match step:
            case ("put", str(key), str(said)):
                current = await sites.get(key) if key in there else None
                value = None if current is None else current.value
                await put(sites, key, SITES.encode(value, Site(spec=SiteSpec(said))))
            case ("put plainly", str(key), str(said)):
                await put(sites, key, site(said))
            case ("write a status", str(key), str(said)) if key in there:
                await change(sites, key, "status", to={"seen": said})
            case ("delete", str(key)) if key in there:
                await delete(sites, key)
            case ("delete raw", str(key)) if key in there:
                await sites.delete(key)

    async def start(self) -> None:
        if self.task is not None:
            return
        self.heal()
        for mirror in (self.first, self.last, self.outside):
            assert mirror.wrong == []
            mirror.inside.clear()
        self.first, self.last = Mirror(), Mirror()
        held = OpinionatedWatcher(SITES)
        held.wrap(self.outside, sync_to_add=True)
        self.controller = InformerController(
            retry_policy=lambda _error, failures: Retry(min(60.0, 2.0**failures)),
            nats=self.stores,
        )
        self.controller.add_informer(SITES)
        for watcher in (self.first, held, self.last):
            self.controller.add_watcher(watcher, SITES)
        self.task = asyncio.create_task(self.controller.run())

    async def end(self, how: str) -> None:
        if self.task is None or self.controller is None:
            return
        if how == "kill":
            self.task.cancel()
        self.controller.stop()
        await asyncio.wait((self.task,))
        if not self.task.cancelled():
            self.task.result()
        self.task = None
        assert self.sites.watches == 0

    def heal(self) -> None:
        self.sites.lag_s, self.sites.breaks_after = 0.0, None
        self.sites.fail(None)

    async def settle(self) -> None:
        await self.start()
        self.heal()
        for mirror in (self.first, self.last, self.outside):
            mirror.failures = 0
        await asyncio.sleep(300)
        assert self.controller is not None
        assert self.controller.idle
        assert self.controller.failing == {SITES.name: {}}


async def play(steps: list[Step]) -> World:
    world = World()
    await world.start()
    for step in steps:
        with suppress(StoreTimeoutError, NotFoundError, ConflictError):
            await world.step(step)
    await world.settle()
    await world.end("stop")
    return world


async def newest(world: World) -> dict[str, Stored]:
    keys = world.sites.keys()
    return {key: await world.sites.get(key) for key in keys}


async def everybody_has_seen_the_newest_state(steps: list[Step]) -> None:
    world = await play(steps)
    found = {key: stored.revision for key, stored in (await newest(world)).items()}
    assert world.first.revisions == world.last.revisions == found
    assert world.first.wrong == world.last.wrong == []


async def what_is_outside_is_what_is_desired(steps: list[Step]) -> None:
    world = await play(steps)
    stored = await newest(world)
    assert all(SITES.metadata(at.value).deletion_timestamp is None for at in stored.values())
    wanted = {key: SITES.decode(at.value).spec.text for key, at in stored.items()}
    assert world.outside.texts == wanted
    assert world.outside.wrong == []


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_in_the_end_every_watcher_has_seen_the_newest_state_and_none_went_back(
    steps: list[Step],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(everybody_has_seen_the_newest_state(steps))


@settings(max_examples=150, deadline=None)
@given(PROTECTED_STEPS)
@example([("put", "a", "one"), ("wait", 1.0), ("stop",), ("delete raw", "a")])
@example([("put", "a", "one"), ("put plainly", "a", "one")])
@example([("put", "a", "one"), ("wait", 1.0), ("put plainly", "a", "two"), ("delete", "a")])
@example(
    [("put", "a", "one"), ("wait", 1.0), ("stop",), ("put plainly", "a", "two"), ("delete", "a")]
)
def test_in_the_end_what_an_opinionated_watcher_keeps_is_what_is_desired(
    steps: list[Step],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(what_is_outside_is_what_is_desired(steps))
