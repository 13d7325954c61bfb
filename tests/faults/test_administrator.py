"""A controller survives the deletion of consumers, buckets, stream contents and messages."""

import pytest

from natsctl import StoreMissingError
from tests.support.clients.nats_admin import Admin, Refused
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import NatsTestBed, delete_consumers, nats_test_bed
from tests.support.servers.nats_server import NatsServer

SOON_S = 0.5  # between two comparisons of key sets


@pytest.mark.parametrize("history", [1, 5])
async def test_a_watch_survives_deleted_consumers_under_writes(
    nats_server: NatsServer, history: int
) -> None:
    async with nats_test_bed(nats_server.url, copies=copies_of(history=history)) as bed:
        async with bed.user.writing():
            for _ in range(2):
                await bed.watched()
                await bed.break_watches(lambda: delete_consumers(bed.admin))
        await bed.settled()


async def test_a_watch_survives_deleted_consumers_of_idle_buckets(nats_server: NatsServer) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        await delete_consumers(bed.admin)
        await bed.user.put_all()
        await bed.settled()


async def test_a_recreated_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        await eventually(bed.swept)
        kept = await bed.checker.copies()
        await bed.admin.restore(await bed.admin.drop(THINGS))
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "recreated"))
        await bed.user.put_all()
        await bed.checker.settled()
        assert not await bed.deleted_copies()


async def test_a_bucket_recreated_with_some_keys_deletes_no_secondary(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        await eventually(bed.swept)
        copies = await bed.checker.copies()
        recreated = bed.user.keys[::2]
        await bed.admin.restore(await bed.admin.drop(THINGS))
        for key in recreated:
            await bed.user.put(key)
        kept = {name: copies[name] for name in copies if name.partition(".")[0] not in recreated}
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "recreated"))
        await bed.checker.settled(kept=kept)
        assert not await bed.deleted_copies()


async def test_a_bucket_recreated_after_it_was_reported_missing_deletes_no_secondary(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        await eventually(bed.swept)
        kept = await bed.checker.copies()
        config = await bed.admin.drop(THINGS)
        await eventually(lambda: isinstance(bed.runtime.host.failure, StoreMissingError))
        await eventually(lambda: refuses(bed, "does not exist"))
        await bed.admin.restore(config)
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "recreated"))
        await bed.user.put_all()
        await bed.checker.settled()
        assert not await bed.deleted_copies()


async def test_a_missing_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        kept = await bed.checker.copies()
        await bed.admin.drop(THINGS)
        await eventually(lambda: isinstance(bed.runtime.host.failure, StoreMissingError))
        for _ in range(3):
            await bed.broken()
            await eventually(lambda: refuses(bed, "does not exist"))
        assert await bed.checker.copies() == kept
        assert not bed.sights.gone


async def test_secondaries_are_restored_after_their_bucket_was_recreated(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        async with bed.user.writing():
            bed.checker.forget_foreign()
            await bed.admin.restore(await bed.admin.drop(COPIES))
            await bed.user.progress()
        await bed.settled()


async def test_a_purged_primary_bucket_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with nats_test_bed(nats_server.url, verify_s=SOON_S) as bed:
        await eventually(bed.swept)
        kept = await bed.checker.copies()
        await bed.admin.purge(THINGS)
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "is empty"))
        await bed.user.put_all()
        await bed.checker.settled()
        assert not await bed.deleted_copies()


async def test_secondaries_are_restored_after_their_bucket_was_purged(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url, verify_s=SOON_S) as bed:
        bed.checker.forget_foreign()
        await bed.admin.purge(COPIES)
        await bed.settled()


async def test_a_purged_primary_is_a_deletion(nats_server: NatsServer) -> None:
    async with nats_test_bed(nats_server.url, verify_s=SOON_S) as bed:
        await eventually(bed.swept)
        await bed.admin.purge(THINGS, "k0")
        await bed.settled()
        assert bed.sights.gone == {"k0"}


async def test_a_deleted_message_is_a_deletion(nats_server: NatsServer) -> None:
    async with Admin(nats_server.url) as admin:
        await admin.create(THINGS, max_msgs_per_subject=1, deny_delete=False)
    async with nats_test_bed(nats_server.url, copies=copies_of(history=1), verify_s=SOON_S) as bed:
        await eventually(bed.swept)
        newest = (await bed.admin.entry(THINGS, "k0")).revision
        await bed.admin.api(f"STREAM.MSG.DELETE.KV_{THINGS}", {"seq": newest})
        await bed.settled()
        assert bed.sights.gone == {"k0"}


async def test_messages_of_buckets_that_natsctl_creates_cannot_be_deleted(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        newest = (await bed.admin.entry(THINGS, "k0")).revision
        with pytest.raises(Refused, match="not permitted"):
            await bed.admin.api(f"STREAM.MSG.DELETE.KV_{THINGS}", {"seq": newest})


async def refuses(bed: NatsTestBed, reason: str) -> bool:
    """Return whether garbage collection is held for this reason."""
    return reason in (await bed.runtime.garbage_plan()).refused
