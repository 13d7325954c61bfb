"""Whatever is added, updated, removed and read, and whatever fails: watches are counted exactly,
and every watcher is called for every change of what it watches, and for nothing else."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from natsctl import NotFoundError, PermissionDeniedError
from natsctl.dynamic import ObjectIdentifier
from natsctl.model.selectors import Selector
from natsctl.testing.time import VirtualTimeLoop
from tests.support.controllers.dynamic_dependents import (
    LIMITS,
    QUIET,
    SECRET,
    Dependents,
    dependents,
    limit,
    secret,
    secrets,
    watcher_called,
)

WATCHERS = [watcher_called(name) for name in "xyz"]
SINGLE = {(system, name) for system in ("secret", "limit") for name in "ab"}
THINGS: dict[tuple[str, str], ObjectIdentifier] = {
    ("secret", "a"): secret("a"),
    ("secret", "b"): secret("b"),
    ("limit", "a"): limit("a"),
    ("limit", "b"): limit("b"),
    ("secret", "*"): secrets("g=1"),
    ("limit", "*"): limit(selector="g=1"),
}
GOLD = Selector.parse("g=1")

WHO = st.sampled_from(WATCHERS)
THING = st.sampled_from(sorted(THINGS))
SYSTEM = st.sampled_from(["secret", "limit"])

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), WHO, THING),
        st.tuples(st.just("update"), WHO, st.sets(THING, min_size=1, max_size=4)),
        st.tuples(st.just("read"), WHO, st.lists(THING, max_size=4, unique=True)),
        st.tuples(st.just("remove"), WHO),
        st.tuples(st.just("put"), st.sampled_from(sorted(SINGLE)), st.sampled_from("01")),
        st.tuples(st.just("put"), st.sampled_from(sorted(SINGLE)), st.sampled_from("01")),
        st.tuples(st.just("delete"), st.sampled_from(sorted(SINGLE))),
        st.tuples(st.just("break"), SYSTEM),
        st.tuples(st.just("deny"), SYSTEM),
        st.tuples(st.just("allow"), SYSTEM),
    ),
    max_size=25,
)


class World:
    """A dynamic watcher, and what must be true of it."""

    def __init__(self, play: Dependents) -> None:
        self.play = play
        self.watched: dict[ObjectIdentifier, set[tuple[str, str]]] = {}
        self.objects: dict[tuple[str, str], str] = {}  # and their label
        self.denied: set[str] = set()
        self.turn = 0

    async def step(self, step: tuple[Any, ...]) -> set[ObjectIdentifier]:
        """Do it, and return who must be called."""
        match step:
            case ("put" | "delete", (system, _), *_) if system in self.denied:
                return set()
            case ("put", thing, label):
                return await self.put(thing, label)
            case ("delete", thing):
                return await self.delete(thing)
            case ("break", system):
                self.store(system).break_watches()
            case ("deny", system):
                return self.deny(system)
            case ("allow", system):
                self.store(system).fail(None)
                self.denied.discard(system)
            case (_, who, *what):
                await self.change(step[0], who, *what)
        return set()

    async def change(self, how: str, who: ObjectIdentifier, what: Any = ()) -> None:
        before = self.watched.get(who, set())
        watcher = self.play.watcher
        match how:
            case "add":
                wanted = {what}
                call = watcher.add_watcher(who, THINGS[what])
            case "update":
                wanted = set(what)
                call = watcher.add_or_update_watcher(who, *(THINGS[thing] for thing in what))
            case "remove":
                wanted = set()
                call = watcher.remove_watcher(who)
            case _:
                await self.read(who, what)
                return
        refused = any(thing[0] in self.denied for thing in wanted)
        assert refused == await fails(call)
        if not refused:
            self.watched[who] = before | wanted if how == "add" else wanted

    async def read(self, who: ObjectIdentifier, things: list[tuple[str, str]]) -> None:
        """Read them in turn; those that come before one that is denied are watched as well."""
        denied = [number for number, thing in enumerate(things) if thing[0] in self.denied]
        before = self.watched.get(who, set())
        assert bool(denied) == await fails(self.batch(who, things))
        read = set(things[: denied[0]] if denied else things)
        self.watched[who] = before | read if denied else read

    async def batch(self, who: ObjectIdentifier, things: list[tuple[str, str]]) -> None:
        async with self.play.watcher.query_batch(who):
            for system, name in things:
                assert await self.shown(who, system, name) == self.expected(system, name)

    async def shown(self, who: ObjectIdentifier, system: str, name: str) -> dict[str, str]:
        gvk, place = (SECRET, "default") if system == "secret" else (LIMITS, "")
        if name == "*":
            found = await self.play.watcher.list(who, gvk, place, GOLD)
        else:
            one = await self.play.watcher.get(who, gvk, place, name)
            found = [] if one is None else [one]
        return {at["metadata"]["name"]: at["metadata"]["labels"]["g"] for at in found}  # type: ignore[index]

    def expected(self, system: str, name: str) -> dict[str, str]:
        here = {of: label for (at, of), label in self.objects.items() if at == system}
        if name == "*":
            return {of: label for of, label in here.items() if label == "1"}
        return {of: label for of, label in here.items() if of == name}

    async def put(self, thing: tuple[str, str], label: str) -> set[ObjectIdentifier]:
        self.turn += 1
        system, name = thing
        if system == "secret":
            await self.play.put_secret(f"default/{name}", str(self.turn), g=label)
        else:
            await self.play.put_limit(name, self.turn, g=label)
        before, self.objects[thing] = self.objects.get(thing), label
        return self.concerned(thing, before, label)

    async def delete(self, thing: tuple[str, str]) -> set[ObjectIdentifier]:
        system, name = thing
        try:
            await self.store(system).delete(f"default/{name}" if system == "secret" else name)
        except NotFoundError:
            return set()
        return self.concerned(thing, self.objects.pop(thing), None)

    def concerned(self, thing: tuple[str, str], *labels: str | None) -> set[ObjectIdentifier]:
        meant = {thing} | ({(thing[0], "*")} if "1" in labels else set())
        return {who for who, things in self.watched.items() if things & meant}

    def deny(self, system: str) -> set[ObjectIdentifier]:
        self.store(system).fail(PermissionDeniedError("you may not"))
        self.denied.add(system)
        lost = {who for who, at in self.watched.items() if any(of == system for of, _ in at)}
        for who in lost:
            self.watched[who] = {thing for thing in self.watched[who] if thing[0] != system}
        return lost

    def store(self, system: str) -> Any:
        return self.play.secrets if system == "secret" else self.play.limits

    def check(self) -> None:
        distinct = set().union(*self.watched.values())
        assert self.play.watcher.get_watch_count() == len(distinct)
        assert self.play.watches == len(distinct)


async def fails(call: Any) -> bool:
    try:
        await call
    except PermissionDeniedError:
        return True
    return False


async def play_out(steps: list[tuple[Any, ...]]) -> None:
    async with dependents(QUIET) as play:
        world = World(play)
        for step in steps:
            called = await world.step(step)
            await asyncio.sleep(20)  # watches that broke are back
            assert set(play.calls) == {who.name for who in called}, step
            play.calls.clear()
            world.check()
    assert play.watches == 0


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_watches_are_exact_and_every_change_is_told(steps: list[tuple[Any, ...]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(play_out(steps))


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_at_once_the_counts_are_right_in_the_end(
    steps: list[tuple[Any, ...]],
) -> None:
    """Nobody waits for one call before the next one: each watcher's take turns."""

    async def all_at_once() -> None:
        async with dependents(QUIET) as play:
            world = World(play)
            changes = [step for step in steps if step[0] in {"add", "update", "remove"}]
            calls = []
            for how, who, *what in changes:
                match how:
                    case "add":
                        calls.append(play.watcher.add_watcher(who, THINGS[what[0]]))
                        world.watched.setdefault(who, set()).add(what[0])
                    case "update":
                        things = [THINGS[at] for at in sorted(what[0])]
                        calls.append(play.watcher.add_or_update_watcher(who, *things))
                        world.watched[who] = set(what[0])
                    case _:
                        calls.append(play.watcher.remove_watcher(who))
                        world.watched[who] = set()
            await asyncio.gather(*calls)
            await asyncio.sleep(1)
            world.check()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(all_at_once())
