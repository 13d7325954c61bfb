"""Property test of pauses and quarantine: each change is synced once, whatever is held back."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from natsctl import Operation
from natsctl.testing import Harness, MemoryStores, VirtualTimeLoop, running
from tests.support.controllers.app_controller import AppClient, Apps, document, edit
from tests.support.controllers.quarantined_apps import dead, on_machine, syncs_of

PAUSED = "natsctl.io/paused"
KEYS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("change", "pause", "resume", "ask", "name", "die", "restart")),
        st.sampled_from(KEYS),
    ),
    max_size=25,
)


class Rare(Apps):
    name = "apps"
    resync_s = 1e9


class Model:
    """What is paused or quarantined, what waits for the end of that, and the syncs so far."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.waiting: set[str] = set()
        self.deaths = Counter[str]()  # of the present desired state, since the last sync
        self.syncs = Counter[str]()

    @property
    def quarantined(self) -> set[str]:
        return {key for key, count in self.deaths.items() if count >= 3}

    def wants(self, key: str) -> None:
        if key in self.paused | self.quarantined:
            self.waiting.add(key)
        else:
            self.waiting.discard(key)
            self.syncs[key] += 1
            self.deaths[key] = 0

    def resumes(self, key: str) -> None:
        self.paused.discard(key)
        if key in self.waiting:
            self.wants(key)


DIES = [("die", "a")] * 3 + [("restart", "a")]


@example(steps=[*DIES, ("ask", "a"), ("restart", "a"), ("name", "a")])
@example(steps=[*DIES, ("change", "a"), ("pause", "a"), ("resume", "a")])
@example(steps=[*DIES, ("pause", "a"), ("change", "a"), ("resume", "a")])
@given(steps=STEPS)
def test_each_change_is_synced_once_and_never_while_its_key_is_paused(
    steps: list[tuple[str, str]],
) -> None:
    with (
        TemporaryDirectory() as directory,
        on_machine(Path(directory)),
        asyncio.Runner(loop_factory=VirtualTimeLoop) as runner,
    ):
        runner.run(behaves_as_the_model(steps, Path(directory)))


async def behaves_as_the_model(  # noqa: C901 - one case for each step
    steps: list[tuple[str, str]], directory: Path
) -> None:
    stores, model, synced, found = MemoryStores(), Model(), Counter[str](), Counter[str]()
    client = AppClient(stores)
    for key in KEYS:
        await client.app(key, "0")
    async with AsyncExitStack() as stack:
        harness = await started(stack, stores, model)
        for number, (step, key) in enumerate(steps):
            match step:
                case "restart":
                    synced += Counter(syncs_of(harness))
                    await stack.aclose()
                    model.deaths += found
                    found.clear()
                    harness = await started(stack, stores, model)
                case "die":
                    dead(directory, key, number)
                    found[key] += 1
                    continue  # the next process finds it
                case "name":
                    harness.runtime.enqueue_key(key, Operation.MANUAL)
                    model.deaths[key] = 0
                    model.wants(key)
                case "ask":
                    harness.runtime.enqueue_key(key, Operation.RESYNC)
                    model.wants(key)
                case "change":
                    await edit(client.apps, key, "spec", "text", to=f"v{number}")
                    model.deaths[key] = 0
                    model.wants(key)
                case "pause":
                    await edit(client.apps, key, "metadata", "annotations", PAUSED, to="by=ann")
                    model.paused.add(key)
                case "resume":
                    await edit(client.apps, key, "metadata", "annotations", to={})
                    model.resumes(key)
            await asyncio.sleep(1)
            assert synced + Counter(syncs_of(harness)) == model.syncs, (number, step, key)
            texts = await client.texts()
            for name in set(KEYS) - model.paused - model.quarantined:
                app = await document(client.apps, name)
                assert texts[f"{name}.main"] == app["spec"]["text"]


async def started(stack: AsyncExitStack, stores: MemoryStores, model: Model) -> Harness:
    harness = await stack.enter_async_context(running(Rare(), stores=stores))
    await asyncio.sleep(1)
    for key in KEYS:  # a start wants every key once
        model.wants(key)
    return harness
