"""A controller survives the deletion of consumers, buckets, stream contents and messages."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import StoreMissingError
from tests.support.clients.nats_admin import Admin, Refused
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import NatsTestBed, delete_consumers, nats_test_bed
from tests.support.servers.nats_server import NatsServer

SOON_S = 0.5  # between two comparisons of key sets


@asynccontextmanager
async def swept_bed(server: NatsServer, **options: Any) -> AsyncIterator[NatsTestBed]:
    """Run the controller until garbage collection has remembered the things."""
    async with nats_test_bed(server.url, **options) as bed:
        await eventually(bed.swept)
        yield bed


@pytest.mark.parametrize("history", [1, 5])
async def test_a_watch_survives_deleted_consumers(nats_server: NatsServer, history: int) -> None:
    async with nats_test_bed(nats_server.url, copies=copies_of(history=history)) as bed:
        await delete_consumers(bed.admin)  # while the buckets are idle
        await bed.user.put_all()
        await bed.settled()
        async with bed.user.writing():
            for _ in range(2):
                await bed.watched()
                await bed.break_watches(lambda: delete_consumers(bed.admin))
        await bed.settled()


async def test_a_bucket_recreated_with_some_keys_deletes_no_secondary(
    nats_server: NatsServer,
) -> None:
    async with swept_bed(nats_server) as bed:
        copies = await bed.checker.copies()
        recreated = bed.user.keys[::2]
        await bed.admin.restore(await bed.admin.drop(THINGS))
        for key in recreated:
            await bed.user.put(key)
        kept = {name: copies[name] for name in copies if name.partition(".")[0] not in recreated}
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "recreated"))
        await bed.checker.settled(kept=kept)
        await restore_all(bed)


async def test_a_bucket_missing_for_a_while_deletes_no_secondary(nats_server: NatsServer) -> None:
    async with swept_bed(nats_server) as bed:
        kept = await bed.checker.copies()
        config = await bed.admin.drop(THINGS)
        await eventually(lambda: isinstance(bed.runtime.host.failure, StoreMissingError))
        for _ in range(2):
            await bed.broken()
            await eventually(lambda: refuses(bed, "does not exist"))
        assert await bed.checker.copies() == kept
        assert not bed.sights.gone
        await bed.admin.restore(config)
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "recreated"))
        await restore_all(bed)


async def test_secondaries_are_restored_after_their_bucket_was_recreated_or_purged(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url, verify_s=SOON_S) as bed:
        bed.checker.forget_foreign()
        async with bed.user.writing():
            await bed.admin.restore(await bed.admin.drop(COPIES))
            await bed.user.progress()
        await bed.settled()
        await bed.admin.purge(COPIES)
        await bed.settled()


async def test_a_purged_primary_is_a_deletion_and_a_purged_bucket_is_not(
    nats_server: NatsServer,
) -> None:
    async with swept_bed(nats_server, verify_s=SOON_S) as bed:
        await bed.admin.purge(THINGS, "k0")
        await bed.settled()
        assert bed.sights.gone == {"k0"}
        deleted, kept = await bed.deleted_copies(), await bed.checker.copies()
        await bed.admin.purge(THINGS)
        await bed.checker.settled(kept=kept)
        await eventually(lambda: refuses(bed, "is empty"))
        await restore_all(bed, deleted=deleted)


async def test_a_deleted_message_is_a_deletion(nats_server: NatsServer) -> None:
    async with Admin(nats_server.url) as admin:
        await admin.create(THINGS, max_msgs_per_subject=1, deny_delete=False)
    async with swept_bed(nats_server, copies=copies_of(history=1), verify_s=SOON_S) as bed:
        newest = (await bed.admin.entry(THINGS, "k0")).revision
        await bed.admin.api(f"STREAM.MSG.DELETE.KV_{THINGS}", {"seq": newest})
        await bed.settled()
        assert bed.sights.gone == {"k0"}
        newest = (await bed.admin.entry(COPIES, "k1.0")).revision  # in a bucket of natsctl
        with pytest.raises(Refused, match="not permitted"):
            await bed.admin.api(f"STREAM.MSG.DELETE.KV_{COPIES}", {"seq": newest})


async def restore_all(bed: NatsTestBed, *, deleted: Collection[str] = ()) -> None:
    """Put all things again, and check that no copies but these were deleted."""
    await bed.user.put_all()
    await bed.checker.settled()
    assert await bed.deleted_copies() == set(deleted)


async def refuses(bed: NatsTestBed, reason: str) -> bool:
    """Return whether garbage collection is held for this reason."""
    return reason in (await bed.runtime.garbage_plan()).refused
