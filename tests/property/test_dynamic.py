"""Property tests of dynamic watches: watches are counted exactly, whatever fails.

Every watcher is called for every change of an object that it watches, and for no other change.
"""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from natsctl import NotFoundError, PermissionDeniedError, Selector
from natsctl.dynamic import ObjectIdentifier
from natsctl.testing import in_virtual_time
from tests.support.controllers.dynamic_dependents import (
    LIMITS,
    QUIET,
    SECRET,
    DynamicHarness,
    dynamic_harness,
    limit,
    secret,
    secrets,
    watcher_called,
)

WATCHERS = [watcher_called(name) for name in "xyz"]
SINGLE = {(system, name) for system in ("secret", "limit") for name in "ab"}
IDENTIFIERS: dict[tuple[str, str], ObjectIdentifier] = {
    ("secret", "a"): secret("a"),
    ("secret", "b"): secret("b"),
    ("limit", "a"): limit("a"),
    ("limit", "b"): limit("b"),
    ("secret", "*"): secrets("g=1"),
    ("limit", "*"): limit(selector="g=1"),
}
GOLD = Selector.parse("g=1")

WATCHER = st.sampled_from(WATCHERS)
TARGET = st.sampled_from(sorted(IDENTIFIERS))
SYSTEM = st.sampled_from(["secret", "limit"])

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), WATCHER, TARGET),
        st.tuples(st.just("update"), WATCHER, st.sets(TARGET, min_size=1, max_size=4)),
        st.tuples(st.just("read"), WATCHER, st.lists(TARGET, max_size=4, unique=True)),
        st.tuples(st.just("remove"), WATCHER),
        st.tuples(st.just("put"), st.sampled_from(sorted(SINGLE)), st.sampled_from("01")),
        st.tuples(st.just("put"), st.sampled_from(sorted(SINGLE)), st.sampled_from("01")),
        st.tuples(st.just("delete"), st.sampled_from(sorted(SINGLE))),
        st.tuples(st.just("break"), SYSTEM),
        st.tuples(st.just("deny"), SYSTEM),
        st.tuples(st.just("allow"), SYSTEM),
    ),
    max_size=25,
)


class Model:
    """A dynamic watcher, and a model of its watches."""

    def __init__(self, harness: DynamicHarness) -> None:
        self.harness = harness
        self.watched: dict[ObjectIdentifier, set[tuple[str, str]]] = {}
        self.objects: dict[tuple[str, str], str] = {}  # with their label
        self.denied: set[str] = set()
        self.turn = 0

    async def step(self, step: tuple[Any, ...]) -> set[ObjectIdentifier]:
        """Do one step, and return the watchers that must be called."""
        match step:
            case ("put" | "delete", (system, _), *_) if system in self.denied:
                return set()
            case ("put", target, label):
                return await self.put(target, label)
            case ("delete", target):
                return await self.delete(target)
            case ("break", system):
                self.store(system).break_watches()
            case ("deny", system):
                return self.deny(system)
            case ("allow", system):
                self.store(system).fail(None)
                self.denied.discard(system)
            case (_, watcher_id, *arguments):
                await self.change(step[0], watcher_id, *arguments)
        return set()

    async def change(self, action: str, watcher_id: ObjectIdentifier, arguments: Any = ()) -> None:
        watcher = self.harness.watcher
        match action:
            case "add":
                wanted = {arguments}
                call = watcher.add_watcher(watcher_id, IDENTIFIERS[arguments])
            case "update":
                wanted = set(arguments)
                call = watcher.add_or_update_watcher(
                    watcher_id, *(IDENTIFIERS[target] for target in arguments)
                )
            case "remove":
                wanted = set()
                call = watcher.remove_watcher(watcher_id)
            case _:
                await self.read(watcher_id, arguments)
                return
        refused = any(target[0] in self.denied for target in wanted)
        assert refused == await fails(call)
        if not refused:
            before = self.watched.get(watcher_id, set()) if action == "add" else set()
            self.watched[watcher_id] = before | wanted

    async def read(self, watcher_id: ObjectIdentifier, targets: list[tuple[str, str]]) -> None:
        """Read targets in order; targets before the first denied one are watched as well."""
        denied = [number for number, target in enumerate(targets) if target[0] in self.denied]
        before = self.watched.get(watcher_id, set())
        assert bool(denied) == await fails(self.batch(watcher_id, targets))
        read = set(targets[: denied[0]] if denied else targets)
        self.watched[watcher_id] = before | read if denied else read

    async def batch(self, watcher_id: ObjectIdentifier, targets: list[tuple[str, str]]) -> None:
        async with self.harness.watcher.query_batch(watcher_id):
            for system, name in targets:
                assert await self.shown(watcher_id, system, name) == self.expected(system, name)

    async def shown(self, watcher_id: ObjectIdentifier, system: str, name: str) -> dict[str, str]:
        gvk, place = (SECRET, "default") if system == "secret" else (LIMITS, "")
        if name == "*":
            listed = await self.harness.watcher.list(watcher_id, gvk, place, GOLD)
        else:
            obj = await self.harness.watcher.get(watcher_id, gvk, place, name)
            listed = [] if obj is None else [obj]
        return {read["metadata"]["name"]: read["metadata"]["labels"]["g"] for read in listed}  # type: ignore[index]

    def expected(self, system: str, name: str) -> dict[str, str]:
        labels = {key: label for (owner, key), label in self.objects.items() if owner == system}
        if name == "*":
            return {key: label for key, label in labels.items() if label == "1"}
        return {key: label for key, label in labels.items() if key == name}

    async def put(self, target: tuple[str, str], label: str) -> set[ObjectIdentifier]:
        self.turn += 1
        system, name = target
        if system == "secret":
            await self.harness.put_secret(f"default/{name}", str(self.turn), g=label)
        else:
            await self.harness.put_limit(name, self.turn, g=label)
        before, self.objects[target] = self.objects.get(target), label
        return self.watchers_of(target, before, label)

    async def delete(self, target: tuple[str, str]) -> set[ObjectIdentifier]:
        system, name = target
        try:
            await self.store(system).delete(f"default/{name}" if system == "secret" else name)
        except NotFoundError:
            return set()
        return self.watchers_of(target, self.objects.pop(target), None)

    def watchers_of(self, target: tuple[str, str], *labels: str | None) -> set[ObjectIdentifier]:
        matching = {target} | ({(target[0], "*")} if "1" in labels else set())
        return {watcher_id for watcher_id, targets in self.watched.items() if targets & matching}

    def deny(self, system: str) -> set[ObjectIdentifier]:
        self.store(system).fail(PermissionDeniedError("you may not"))
        self.denied.add(system)
        lost = {
            watcher_id
            for watcher_id, targets in self.watched.items()
            if any(target[0] == system for target in targets)
        }
        for watcher_id in lost:
            self.watched[watcher_id] = {
                target for target in self.watched[watcher_id] if target[0] != system
            }
        return lost

    def store(self, system: str) -> Any:
        return self.harness.secrets if system == "secret" else self.harness.limits

    def check(self) -> None:
        distinct = set().union(*self.watched.values())
        assert self.harness.watcher.get_watch_count() == len(distinct)
        assert self.harness.watches == len(distinct)


async def fails(call: Any) -> bool:
    try:
        await call
    except PermissionDeniedError:
        return True
    return False


@given(STEPS)
@in_virtual_time
async def test_watches_are_exact_and_every_change_calls_its_watchers(
    steps: list[tuple[Any, ...]],
) -> None:
    async with dynamic_harness(QUIET) as harness:
        model = Model(harness)
        for step in steps:
            called = await model.step(step)
            await asyncio.sleep(20)  # broken watches have restarted
            assert set(harness.calls) == {watcher_id.name for watcher_id in called}, step
            harness.calls.clear()
            model.check()
    assert harness.watches == 0


@given(STEPS)
@in_virtual_time
async def test_watch_counts_are_exact_after_concurrent_calls(steps: list[tuple[Any, ...]]) -> None:
    """All calls run concurrently; the calls of one watcher run in order."""
    async with dynamic_harness(QUIET) as harness:
        model = Model(harness)
        changes = [step for step in steps if step[0] in {"add", "update", "remove"}]
        await asyncio.gather(*(model.change(*step) for step in changes))
        await asyncio.sleep(1)
        model.check()
