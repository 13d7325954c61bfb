"""The record of garbage collection in a real bucket, and its checks in doctor."""

from natsctl import NatsOptions
from natsctl.daemon.doctor.buckets import check_garbage
from natsctl.daemon.doctor.finding import Result
from natsctl.daemon.kinds import used_by
from tests.integration.test_runtime import (
    FastGarbage,
    app,
    becomes,
    has_gc_record,
    plain,
    put,
    running,
)
from tests.support.clients.bucket_keys import keys
from tests.support.clients.nats import connect
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


async def test_garbage_without_a_record_of_the_bucket_is_held_until_it_is_accepted(
    nats_server: NatsServer,
) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, FastGarbage()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("bar", "baz", "shop"):
                await put(apps, key, app())
            part_keys = ["bar.main", "baz.main", "shop.main"]
            await becomes(parts, *part_keys)
            await eventually(lambda: has_gc_record(js))
        await js.delete_key_value("natsctl")
        await js.purge_stream("KV_apps", subject="$KV.apps.shop")

        async with running(nats_server, FastGarbage()) as runtime:
            await eventually(lambda: bool(runtime.garbage_held))
            assert await findings(nats_server) == [
                "collection is held: nothing is remembered about the bucket of App.apps"
            ]
            assert await keys(parts) == part_keys
            await runtime.garbage_accept()
            await becomes(parts, "bar.main", "baz.main")
            assert await findings(nats_server) == []


async def findings(server: NatsServer) -> list[str]:
    """Return the warnings of doctor about garbage collection."""
    async with connect(NatsOptions(servers=(server.url,))) as connection:
        warnings = [check async for check in check_garbage(connection, used_by([FastGarbage()]))]
    assert all(check.result is Result.WARNING for check in warnings)
    return [check.found for check in warnings]
