"""A controller survives the deletion of consumers, buckets, stream contents and messages."""

import pytest

from natsctl import StoreMissingError
from tests.support.clients.nats_admin import Admin, Refused
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import delete_consumers, playing
from tests.support.servers.nats_server import NatsServer

SOON_S = 0.5  # between two comparisons of key sets


@pytest.mark.parametrize("history", [1, 5])
async def test_a_watch_survives_deleted_consumers_under_writes(
    nats_server: NatsServer, history: int
) -> None:
    async with playing(nats_server.url, of=copies_of(history=history)) as play:
        async with play.user.writing():
            for _ in range(2):
                await play.watched()
                async with play.breaking(times=2):
                    await delete_consumers(play.admin)
        await play.settled()


async def test_a_watch_survives_deleted_consumers_of_idle_buckets(nats_server: NatsServer) -> None:
    async with playing(nats_server.url) as play:
        await delete_consumers(play.admin)
        await play.user.put_all()
        await play.settled()


async def test_a_recreated_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with playing(nats_server.url) as play:
        await eventually(play.swept)
        kept = await play.checker.copies()
        await play.admin.restore(await play.admin.drop(THINGS))
        await play.checker.settled(kept=kept)
        assert "recreated" in (await play.runtime.garbage_plan()).refused
        await play.user.put_all()
        await play.checker.settled()
        assert not await play.deleted_copies()


async def test_a_bucket_recreated_with_some_keys_deletes_no_secondary(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url) as play:
        await eventually(play.swept)
        copies = await play.checker.copies()
        recreated = play.user.keys[:30]
        await play.admin.restore(await play.admin.drop(THINGS))
        for key in recreated:
            await play.user.put(key)
        kept = {name: copies[name] for name in copies if name.partition(".")[0] not in recreated}
        await play.checker.settled(kept=kept)
        assert "recreated" in (await play.runtime.garbage_plan()).refused
        await play.checker.settled(kept=kept)
        assert not await play.deleted_copies()


async def test_a_bucket_recreated_after_it_was_reported_missing_deletes_no_secondary(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url) as play:
        await eventually(play.swept)
        kept = await play.checker.copies()
        config = await play.admin.drop(THINGS)
        await eventually(lambda: isinstance(play.runtime.failure, StoreMissingError))
        assert "does not exist" in (await play.runtime.garbage_plan()).refused
        await play.admin.restore(config)
        await play.checker.settled(kept=kept)
        assert "recreated" in (await play.runtime.garbage_plan()).refused
        await play.user.put_all()
        await play.checker.settled()
        assert not await play.deleted_copies()


async def test_a_missing_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with playing(nats_server.url) as play:
        kept = await play.checker.copies()
        await play.admin.drop(THINGS)
        await eventually(lambda: isinstance(play.runtime.failure, StoreMissingError))
        for _ in range(3):
            await play.broken()
            assert "does not exist" in (await play.runtime.garbage_plan()).refused
        assert await play.checker.copies() == kept
        assert not play.sights.gone


async def test_secondaries_are_restored_after_their_bucket_was_recreated(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url) as play:
        async with play.user.writing():
            play.checker.forget_foreign()
            await play.admin.restore(await play.admin.drop(COPIES))
            await play.user.progress()
        await play.settled()


async def test_a_purged_primary_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with playing(nats_server.url, verify_s=SOON_S) as play:
        await eventually(play.swept)
        kept = await play.checker.copies()
        await play.admin.purge(THINGS)
        await play.checker.settled(kept=kept)
        assert "is empty" in (await play.runtime.garbage_plan()).refused
        await play.user.put_all()
        await play.checker.settled()
        assert not await play.deleted_copies()


async def test_secondaries_are_restored_after_their_bucket_was_purged(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url, verify_s=SOON_S) as play:
        play.checker.forget_foreign()
        await play.admin.purge(COPIES)
        await play.settled()


async def test_a_purged_primary_is_a_deletion(nats_server: NatsServer) -> None:
    async with playing(nats_server.url, verify_s=SOON_S) as play:
        await eventually(play.swept)
        await play.admin.purge(THINGS, "k0")
        await play.settled()
        assert play.sights.gone == {"k0"}


async def test_a_deleted_message_is_a_deletion(nats_server: NatsServer) -> None:
    async with Admin(nats_server.url) as admin:
        await admin.create(THINGS, max_msgs_per_subject=1, deny_delete=False)
    async with playing(nats_server.url, of=copies_of(history=1), verify_s=SOON_S) as play:
        await eventually(play.swept)
        newest = (await play.admin.entry(THINGS, "k0")).revision
        await play.admin.api(f"STREAM.MSG.DELETE.KV_{THINGS}", {"seq": newest})
        await play.settled()
        assert play.sights.gone == {"k0"}


async def test_messages_of_buckets_that_natsctl_creates_cannot_be_deleted(
    nats_server: NatsServer,
) -> None:
    async with playing(nats_server.url) as play:
        newest = (await play.admin.entry(THINGS, "k0")).revision
        with pytest.raises(Refused, match="not permitted"):
            await play.admin.api(f"STREAM.MSG.DELETE.KV_{THINGS}", {"seq": newest})
