"""A task knows what it is about."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from natsctl.core.cache.informer import Informer
from natsctl.core.queue.retry import Retry
from natsctl.core.sync.loop import SyncLoop
from natsctl.model.store import WatchEvent
from natsctl.telemetry.log_context import about, bind, detach
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, informed


async def test_a_task_hands_on_what_it_is_about_and_keeps_its_own_apart() -> None:
    async def child() -> Mapping[str, object]:
        inherited = about()
        bind(key="b")
        return inherited

    bind(controller="c", key="a")
    assert await asyncio.create_task(child()) == {"controller": "c", "key": "a"}
    assert about() == {"controller": "c", "key": "a"}


async def test_what_outlives_a_visit_is_about_its_controller_only() -> None:
    bind(controller="c", key="a", attempt=1)
    detach()
    assert about() == {"controller": "c"}


async def test_a_worker_is_about_its_key_and_how_often_it_was_tried() -> None:
    seen: list[Mapping[str, object]] = []

    async def handler(key: str) -> None:
        seen.append(about())
        if len(seen) > 2:
            loop.queue.shut_down(drain=False)
        elif key == "a":
            raise ValueError

    async def ready() -> None:
        """Be ready."""

    loop = SyncLoop(handler, retry=lambda error, failures: Retry(1))
    loop.queue.add("a")
    loop.queue.add("b")
    await loop.run(ready)
    assert seen == [
        {"key": "a", "attempt": 1},
        {"key": "b", "attempt": 1},
        {"key": "a", "attempt": 2},
    ]


async def test_a_watch_that_a_visit_began_is_not_about_its_key() -> None:
    seen: list[Mapping[str, object]] = []

    class Noting(MemoryStore):
        @asynccontextmanager
        async def watch(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
            seen.append(about())
            async with super().watch() as events:
                yield events

    bind(controller="c", key="a")
    async with informed(Informer(Noting(THINGS), THINGS)):
        assert seen == [{"controller": "c"}]
