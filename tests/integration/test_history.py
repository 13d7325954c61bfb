"""The history of a key and its pause survive the daemon, on a real NATS server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import KeyExplanation
from natsctl.errors import NoDaemonError, UsageError
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.store import BucketStore
from natsctl.operate.pauses import (
    new_pause,
    pause_controller,
    pause_object,
    resume_controller,
    resume_object,
)
from tests.support.clients.daemons import find_daemons, running_operator
from tests.support.clients.nats import Nats
from tests.support.controllers.app_controller import Apps
from tests.support.eventually import eventually

PAUSE = new_pause(reason="waits")


class Failing(Apps):
    """A controller that fails."""

    name = "apps"

    async def sync_handler(self, key: str) -> float | None:
        raise RuntimeError(f"no luck with {key}")


@asynccontextmanager
async def daemon(nats: Nats, controller: Apps) -> AsyncIterator[Daemons]:
    """Run a daemon with this controller."""
    async with running_operator(nats, [controller]) as operator:
        await eventually(operator.synced.is_set)
        yield await find_daemons(nats)


async def explained(daemons: Daemons) -> KeyExplanation:
    return (await daemons.explain("apps", "shop"))[0]


@pytest.fixture
def apps(nats: Nats) -> BucketStore:
    return BucketStore(Bucket(nats.connection, "apps"))


async def test_the_syncs_of_an_earlier_process_are_explained(nats: Nats, apps: BucketStore) -> None:
    async with daemon(nats, Failing()) as daemons:
        await apps.create("shop", b'{"spec": {"text": "hi"}}')

        async def failed_often() -> bool:
            return (await explained(daemons)).failures >= 6

        await eventually(failed_often)
    async with daemon(nats, Apps()) as daemons:

        async def recovered() -> KeyExplanation | None:
            explanation = await explained(daemons)
            return explanation if explanation.syncs and not explanation.syncs[-1].error else None

        explanation = await eventually(recovered)
        assert explanation is not None
        assert "RuntimeError: no luck with shop" in [sync.error for sync in explanation.syncs]


async def _paused(daemons: Daemons) -> bool:
    return (await explained(daemons)).paused is not None


async def test_a_deleted_paused_object_is_resumed(nats: Nats, apps: BucketStore) -> None:
    parts = BucketStore(Bucket(nats.connection, "parts"))

    async def has_part() -> bool:
        return bool(await parts.listing())

    async def has_no_part() -> bool:
        return not await parts.listing()

    async with daemon(nats, Apps()):
        await apps.create("shop", b'{"spec": {"text": "hi"}}')
        await eventually(has_part)
    await pause_object(nats.connection, "apps", "shop", PAUSE)
    await apps.delete("shop")
    controller = Apps()
    async with daemon(nats, controller) as daemons:
        await eventually(lambda: _paused(daemons))
        assert await has_part()
        assert controller.syncs == []
        resumption = await resume_object(nats.connection, "apps", "shop")
        assert resumption.pause == PAUSE
        await eventually(has_no_part)


async def test_neither_a_paused_controller_nor_a_paused_key_is_synced(
    nats: Nats, apps: BucketStore
) -> None:
    await pause_controller(nats.connection, "apps", PAUSE)
    controller = Apps()
    async with daemon(nats, controller) as daemons:
        await apps.create("shop", b'{"spec": {"text": "hi"}}')
        await eventually(lambda: _paused(daemons))
        assert (await daemons.status("apps"))[0].paused_controller == PAUSE
        assert controller.syncs == []
        assert await resume_controller(nats.connection, "apps") == PAUSE
        await eventually(lambda: controller.syncs)
        assert set(controller.syncs) == {"shop"}
        await pause_object(nats.connection, "apps", "shop", PAUSE)
        await eventually(lambda: _paused(daemons))
        answer = (await daemons.resync("apps", ["shop"]))[0]
        assert (answer.queued, answer.paused_count) == (0, 1)
        assert answer.paused["shop"].endswith("waits")
        await apps.create("plain", b"some text")
        with pytest.raises(UsageError, match="plain has no metadata"):
            await pause_object(nats.connection, "apps", "plain", PAUSE)
    with pytest.raises(NoDaemonError, match="apps runs, but no daemon leads it now"):
        await daemons.resync("apps", ())
    with pytest.raises(NoDaemonError, match="apps runs, but no daemon answers explain requests"):
        await daemons.explain("apps", "shop")
