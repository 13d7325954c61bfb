"""Property test of pauses: each change is synced once, whatever is paused and restarted."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from hypothesis import given
from hypothesis import strategies as st

from natsctl import Operation
from natsctl.testing import Harness, MemoryStores, VirtualTimeLoop, running
from tests.support.controllers.app_controller import AppClient, Apps, document, edit

PAUSED = "natsctl.io/paused"
KEYS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("change", "pause", "resume", "ask", "restart")),
        st.sampled_from(KEYS),
    ),
    max_size=25,
)


class Rare(Apps):
    name = "apps"
    resync_s = 1e9


class Model:
    """What is paused, what waits for the end of its pause, and the syncs so far."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self.waiting: set[str] = set()
        self.syncs = Counter[str]()

    def wants(self, key: str) -> None:
        if key in self.paused:
            self.waiting.add(key)
        else:
            self.syncs[key] += 1

    def resumes(self, key: str) -> None:
        self.paused.discard(key)
        if key in self.waiting:
            self.waiting.remove(key)
            self.syncs[key] += 1


@given(steps=STEPS)
def test_each_change_is_synced_once_and_never_while_its_key_is_paused(
    steps: list[tuple[str, str]],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(behaves_as_the_model(steps))


async def behaves_as_the_model(steps: list[tuple[str, str]]) -> None:
    stores, model, synced = MemoryStores(), Model(), Counter[str]()
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
                    harness = await started(stack, stores, model)
                case "ask":
                    harness.runtime.enqueue_key(key, Operation.RESYNC)
                    model.wants(key)
                case "change":
                    await edit(client.apps, key, "spec", "text", to=f"v{number}")
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
            for name in set(KEYS) - model.paused:
                assert texts[f"{name}.main"] == (await text_of(client, name))


async def started(stack: AsyncExitStack, stores: MemoryStores, model: Model) -> Harness:
    harness = await stack.enter_async_context(running(Rare(), stores=stores))
    await asyncio.sleep(1)
    for key in KEYS:  # a start wants every key once
        model.wants(key)
    return harness


def syncs_of(harness: Harness) -> list[str]:
    controller = harness.runtime.controller
    assert isinstance(controller, Rare)
    return controller.syncs


async def text_of(client: AppClient, key: str) -> object:
    return (await document(client.apps, key))["spec"]["text"]
