"""Property tests of the runtime: secondaries converge after any changes and failures."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from natsctl import NotFoundError, Operation, StoreTimeoutError
from natsctl.testing import VirtualTimeLoop, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    App,
    AppClient,
    Apps,
    AppSpec,
    SlowStore,
    SlowStores,
    edit,
    parts_of,
    put,
)

KEYS = st.sampled_from(["a", "b", "c", "c.d"])
TEXTS = st.sampled_from(["one", "two"])
PARTS_OF = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=3).map(tuple)
STORES = st.sampled_from(["apps", "parts"])

PUTS = st.one_of(
    st.tuples(st.just("put"), KEYS, TEXTS, PARTS_OF),
    st.tuples(st.just("put plainly"), KEYS, TEXTS, PARTS_OF),
    st.tuples(st.just("spoil"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("purge"), KEYS),
    st.tuples(st.just("write a status"), KEYS),
)
TAMPERING = st.one_of(
    st.tuples(st.just("delete a part"), KEYS, st.sampled_from("xyz")),
    st.tuples(st.just("edit a part"), KEYS, st.sampled_from("xyz")),
    st.tuples(st.just("overwrite a part"), KEYS, st.sampled_from("xyz")),
    st.tuples(st.just("give a part away"), KEYS, st.sampled_from("xyz"), KEYS),
)
TROUBLE = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 1.0, 40.0])),
    st.tuples(st.just("break"), STORES, st.sampled_from([None, 0, 1, 3])),
    st.tuples(st.just("lag"), STORES, st.sampled_from([0.0, 0.02, 2.0])),
    st.tuples(st.just("refuse"), STORES, st.booleans()),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.tuples(st.just("enqueue"), KEYS, st.sampled_from(Operation)),
    st.just(("stop",)),
    st.just(("start",)),
)
STEPS = st.lists(st.one_of(PUTS, TAMPERING, TROUBLE), max_size=30)
LOSSES = st.one_of(
    st.tuples(st.just("lose the bucket"), st.booleans()),
    st.tuples(st.just("lose a key"), KEYS),
)
LOSSY_STEPS = st.lists(st.one_of(PUTS, TROUBLE, LOSSES), max_size=20)

FOREIGN = {
    "foreign": b'{"spec": {"text": "of nobody"}}',
    "junk": b"oops",
    "of-another": b'{"metadata": {"labels": {"natsctl.io/owner-kind": "Other.apps", '
    b'"natsctl.io/owner-key": "nobody"}}, "spec": {"text": "of another"}}',
}


class Checked(Apps):
    """A controller that can fail, and counts how many workers sync a key at once."""

    workers = 8

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def sync_handler(self, key: str) -> float | None:
        self.inside[key] += 1
        self.most[key] = max(self.most[key], self.inside[key])
        try:
            await asyncio.sleep(0.01)
            await super().sync_handler(key)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("on purpose")
            await asyncio.sleep(0.01)
        finally:
            self.inside[key] -= 1
        return None


class Model:
    """The stores, a runtime that starts and stops, and a model of the desired parts."""

    def __init__(self) -> None:
        self.stores = SlowStores()
        self.client = AppClient(self.stores)
        self.specs: dict[str, AppSpec] = {}
        self.spoiled: set[str] = set()
        self.lost: dict[str, set[str]] = {}  # the keys lost with their bucket, with their parts
        self.controller = Checked()
        self.runtime = AsyncExitStack()
        self.running = False

    async def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("put" | "put plainly" | "spoil" | "delete" | "purge" | "write a status", *_):
                await self.change(step)
            case ("enqueue", str(key), Operation() as operation) if self.running:
                self.controller.runtime.enqueue_key(key, operation)
            case ("fail", int(times)):
                self.controller.failures = times
            case ("wait", float(seconds)):
                await asyncio.sleep(seconds)
            case ("stop",):
                await self.stop()
            case ("start",):
                await self.start()
            case ("break" | "lag" | "refuse", *_):
                self.trouble(step)
            case (str(), str(key), str(name), *_) if f"{key}.{name}" in self.part_keys():
                await self.tamper(step, f"{key}.{name}")

    async def change(self, step: tuple[Any, ...]) -> None:
        apps = self.client.apps
        match step:
            case ("put", str(key), str(text), tuple(names)) if self.usable(key):
                app = App(spec=AppSpec(text, names))
                current = await apps.get(key) if key in self.specs else None
                value = APPS.encode(None if current is None else current.value, app)
                await put(apps, key, value)
                self.specs[key] = app.spec
            case ("put plainly", str(key), str(text), tuple(names)):
                await self.client.app(key, text, names)
                self.specs[key] = AppSpec(text, names)
                self.spoiled.discard(key)
            case ("spoil", str(key)) if key in self.specs:
                await put(apps, key, b"oops")
                self.spoiled.add(key)
            case ("delete" | "purge" as action, str(key)) if key in self.specs:
                await apps.delete(key, purge=action == "purge")
                del self.specs[key]
                self.spoiled.discard(key)
            case ("write a status", str(key)) if self.usable(key) and key in self.specs:
                await edit(apps, key, "status", "seen", to=True)

    async def lose(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("lose the bucket", bool(converged)):
                if converged and self.running:
                    self.heal()
                    await asyncio.sleep(100)
                existing = set(self.client.parts.keys())
                for key, spec in self.specs.items():
                    if converged and key not in self.spoiled:
                        self.lost[key] = existing & parts_of(key, spec).keys()
                await self.recreate()
                self.specs.clear()
                self.spoiled.clear()
            case ("lose a key", str(key)) if key in self.specs:
                self.client.apps.vanish(key)
                del self.specs[key]
                self.spoiled.discard(key)
                self.lost.pop(key, None)
            case (_, str(key), *_):
                await self.step(step)
                self.lost.pop(key, None)  # a later change of the key decides about its parts
            case _:
                await self.step(step)

    async def recreate(self) -> None:
        """Recreate the bucket, with revisions above those of the old objects."""
        reached = await put(self.client.apps, "pad", {"spec": {"parts": []}})
        self.client.apps.recreate()
        for _ in range(reached):
            await put(self.client.apps, "pad", {"spec": {"parts": []}})
        await self.client.apps.delete("pad")

    def part_keys(self) -> list[str]:
        return self.client.parts.keys()

    def usable(self, key: str) -> bool:
        return key not in self.spoiled

    async def tamper(self, step: tuple[Any, ...], part: str) -> None:
        parts = self.client.parts
        readable = PARTS.valid((await parts.get(part)).value)
        match step:
            case ("delete a part", *_):
                await parts.delete(part)
            case ("edit a part", *_) if readable:
                await edit(parts, part, "spec", "text", to="tampered")
            case ("overwrite a part", *_):
                await put(parts, part, b"oops")
            case ("give a part away", _, _, str(other_owner)) if readable:
                await edit(
                    parts, part, "metadata", "annotations", "natsctl.io/owner-key", to=other_owner
                )

    def trouble(self, step: tuple[Any, ...]) -> None:
        store: SlowStore = self.stores.store(APPS if step[1] == "apps" else PARTS)
        match step:
            case ("break", _, breaks_after):
                store.breaks_after = breaks_after
                store.cut()
            case ("lag", _, float(seconds)):
                store.lag_s = seconds
            case ("refuse", _, bool(refuses)):
                store.fail(StoreTimeoutError("on purpose") if refuses else None)

    async def start(self) -> None:
        if not self.running:
            self.heal()
            self.controller, self.running = Checked(), True
            await self.runtime.enter_async_context(running(self.controller, stores=self.stores))

    async def stop(self) -> None:
        await self.runtime.aclose()
        self.running = False
        assert set(self.controller.most.values()) <= {1}  # no key had two workers

    def heal(self) -> None:
        for store in (self.stores.store(APPS), self.stores.store(PARTS)):
            store.lag_s, store.breaks_after = 0.0, None
            store.fail(None)

    async def settle(self) -> None:
        await self.start()
        self.heal()
        self.controller.failures = 0
        self.client.apps.break_watches()  # the relist finds the lost keys
        await asyncio.sleep(300)
        assert self.controller.runtime.idle


async def set_up(model: Model) -> None:
    for key, value in FOREIGN.items():
        await put(model.client.parts, key, value)
    await model.start()


async def converge(model: Model) -> dict[str, str]:
    """Wait for convergence, check the objects of others, and return the texts of the parts."""
    for key in model.spoiled:
        model.heal()
        await model.client.app(key, "healed", ())
        model.specs[key] = AppSpec("healed", ())
    await model.settle()
    assert set(model.controller.most.values()) <= {1}  # no key had two workers
    parts = model.client.parts
    stored = {key: (await parts.get(key)).value for key in model.part_keys()}
    assert {key: stored.pop(key) for key in FOREIGN} == FOREIGN
    # an undesired part that became invalid while no process ran has no known owner
    return {
        key: PARTS.decode(value).spec.text
        for key, value in stored.items()
        if key in desired_texts(model) or PARTS.valid(value)
    }


def desired_texts(model: Model) -> dict[str, str]:
    return {k: v for key, spec in model.specs.items() for k, v in parts_of(key, spec).items()}


async def run_steps(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with model.runtime:
        await set_up(model)
        for step in steps:
            with suppress(StoreTimeoutError, NotFoundError):  # the store refuses by a step
                await model.step(step)
        stored = await converge(model)

        assert stored == desired_texts(model)
        cached = model.controller.parts.items()
        assert {key: cached[key].spec.text for key in stored} == stored
        assert model.controller.runtime.status().failing == {}


async def run_steps_with_losses(steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    async with model.runtime:
        await set_up(model)
        for step in steps:
            with suppress(StoreTimeoutError, NotFoundError):
                await model.lose(step)
        stored = await converge(model)

        assert stored.items() >= desired_texts(model).items()
        for key in model.lost.keys() - model.specs.keys():
            assert stored.keys() >= model.lost[key]


@given(STEPS)
def test_secondaries_converge_to_the_desired_state(steps: list[tuple[Any, ...]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run_steps(steps))


@given(LOSSY_STEPS)
def test_secondaries_of_lost_primaries_are_kept_without_proof(steps: list[tuple[Any, ...]]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run_steps_with_losses(steps))
