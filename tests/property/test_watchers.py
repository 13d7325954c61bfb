"""Property tests of watchers: they reach the newest state, and never see an older one later."""

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from natsctl import ConflictError, NotFoundError, Retry, StoreTimeoutError
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore, in_virtual_time
from natsctl.watchers import InformerController, OpinionatedWatcher, Snapshot
from tests.support.controllers.app_controller import SlowStore, SlowStores, edit
from tests.support.controllers.recording_watcher import SITES, Site, SiteSpec, site, text
from tests.support.stores import documents
from tests.support.stores.documents import put

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
    """A watcher that keeps the newest objects, can fail, and records violations."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.revisions: dict[str, int] = {}
        self.newest: dict[str, int] = {}
        self.failures = 0
        self.inside: set[str] = set()
        self.violations: list[str] = []

    async def add(self, new: Snapshot[Any]) -> None:
        await self.take(new, exists=True)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self.take(new, exists=True)

    async def delete(self, last: Snapshot[Any]) -> None:
        await self.take(last, exists=False)

    async def take(self, snapshot: Snapshot[Any], *, exists: bool) -> None:
        if snapshot.key in self.inside:
            self.violations.append(f"{snapshot.key} was in two calls at once")
        if snapshot.revision < self.newest.get(snapshot.key, 0):
            self.violations.append(f"{snapshot.key} went back to {snapshot.revision}")
        self.inside.add(snapshot.key)
        try:
            await asyncio.sleep(0.01)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("on purpose")
            self.newest[snapshot.key] = snapshot.revision
            self.texts.pop(snapshot.key, None)
            self.revisions.pop(snapshot.key, None)
            if exists:
                self.texts[snapshot.key] = text(snapshot)
                self.revisions[snapshot.key] = snapshot.revision
            await asyncio.sleep(0.01)
        finally:
            self.inside.discard(snapshot.key)


class Model:
    """A store, a controller that starts and stops, and an external mirror that persists."""

    def __init__(self) -> None:
        self.stores = SlowStores()
        self.sites: SlowStore = self.stores.store(SITES)
        self.external = Mirror()
        self.first, self.last = Mirror(), Mirror()
        self.controller: InformerController | None = None
        self.task: asyncio.Task[None] | None = None

    async def step(self, step: Step) -> None:
        match step:
            case ("wait", float(seconds)):
                await asyncio.sleep(seconds)
            case ("fail", int(times)):
                self.first.failures = self.last.failures = self.external.failures = times
            case ("start",):
                await self.start()
            case ("stop" | "kill" as action,):
                await self.end(action)
            case ("break", breaks_after):
                self.sites.breaks_after = breaks_after
                self.sites.cut()
            case ("lag", float(seconds)):
                self.sites.lag_s = seconds
            case ("refuse", bool(refuses)):
                self.sites.fail(StoreTimeoutError("on purpose") if refuses else None)
            case (str(), str(), *_):
                await self.change(step)

    async def change(self, step: Step) -> None:
        sites: MemoryStore = self.sites
        existing = set(sites.keys())
        match step:
            case ("put", str(key), str(content)):
                current = await sites.get(key) if key in existing else None
                value = None if current is None else current.value
                await put(sites, key, SITES.encode(value, Site(spec=SiteSpec(content))))
            case ("put plainly", str(key), str(content)):
                await put(sites, key, site(content))
            case ("write a status", str(key), str(content)) if key in existing:
                await edit(sites, key, "status", to={"seen": content})
            case ("delete", str(key)) if key in existing:
                await documents.delete(sites, key)
            case ("delete raw", str(key)) if key in existing:
                await sites.delete(key)

    async def start(self) -> None:
        if self.task is not None:
            return
        self.heal()
        for mirror in (self.first, self.last, self.external):
            assert mirror.violations == []
            mirror.inside.clear()
        self.first, self.last = Mirror(), Mirror()
        opinionated = OpinionatedWatcher(SITES)
        opinionated.wrap(self.external, sync_to_add=True)
        self.controller = InformerController(
            retry_policy=lambda _error, failures: Retry(min(60.0, 2.0**failures)), nats=self.stores
        )
        self.controller.add_informer(SITES)
        for watcher in (self.first, opinionated, self.last):
            self.controller.add_watcher(watcher, SITES)
        self.task = asyncio.create_task(self.controller.run())

    async def end(self, action: str) -> None:
        if self.task is None or self.controller is None:
            return
        if action == "kill":
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
        for mirror in (self.first, self.last, self.external):
            mirror.failures = 0
        await asyncio.sleep(300)
        assert self.controller is not None
        assert self.controller.idle
        assert self.controller.failing == {SITES.name: {}}


async def run_steps(steps: list[Step]) -> Model:
    model = Model()
    await model.start()
    for step in steps:
        with suppress(StoreTimeoutError, NotFoundError, ConflictError):
            await model.step(step)
    await model.settle()
    await model.end("stop")
    return model


async def newest(model: Model) -> dict[str, Stored]:
    keys = model.sites.keys()
    return {key: await model.sites.get(key) for key in keys}


@given(STEPS)
@in_virtual_time
async def test_every_watcher_sees_the_newest_state_and_no_older_one_after_it(
    steps: list[Step],
) -> None:
    model = await run_steps(steps)
    revisions = {key: stored.revision for key, stored in (await newest(model)).items()}
    assert model.first.revisions == model.last.revisions == revisions
    assert model.first.violations == model.last.violations == []


@given(PROTECTED_STEPS)
@example([("put", "a", "one"), ("wait", 1.0), ("stop",), ("delete raw", "a")])
@example([("put", "a", "one"), ("put plainly", "a", "one")])
@example([("put", "a", "one"), ("wait", 1.0), ("put plainly", "a", "two"), ("delete", "a")])
@example(
    [("put", "a", "one"), ("wait", 1.0), ("stop",), ("put plainly", "a", "two"), ("delete", "a")]
)
@in_virtual_time
async def test_an_opinionated_watcher_converges_to_the_desired_state(steps: list[Step]) -> None:
    model = await run_steps(steps)
    stored = await newest(model)
    assert all(SITES.metadata(state.value).deletion_timestamp is None for state in stored.values())
    wanted = {key: SITES.decode(state.value).spec.text for key, state in stored.items()}
    assert model.external.texts == wanted
    assert model.external.violations == []
