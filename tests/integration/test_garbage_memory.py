"""What garbage collection remembers in a real bucket, and what doctor reports of it."""

from natsctl.daemon.doctor.finding import Result
from natsctl.daemon.doctor.records import check_garbage
from natsctl.daemon.doctor.used_buckets import used_by
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from tests.integration.test_runtime import Sweeping, app, becomes, keys, plain, put, running, swept
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


async def test_a_lost_memory_and_a_lost_key_collect_nothing_until_a_person_accepts(
    nats_server: NatsServer,
) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, Sweeping()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("bar", "baz", "shop"):
                await put(apps, key, app())
            everything = ["bar.main", "baz.main", "shop.main"]
            await becomes(parts, *everything)
            await eventually(lambda: swept(js))
        await js.delete_key_value("natsctl")
        await js.purge_stream("KV_apps", subject="$KV.apps.shop")

        async with running(nats_server, Sweeping()) as runtime:
            await eventually(lambda: bool(runtime.garbage_held))
            assert await findings(nats_server) == [
                "collection is held: nothing is remembered about the bucket of App.apps"
            ]
            assert await keys(parts) == everything
            await runtime.garbage_accept()
            await becomes(parts, "bar.main", "baz.main")
            assert await findings(nats_server) == []


async def findings(server: NatsServer) -> list[str]:
    """Return the warnings of doctor."""
    async with connect(NatsOptions(servers=(server.url,))) as connection:
        found = [each async for each in check_garbage(connection, used_by([Sweeping()]))]
    assert all(each.result is Result.WARNING for each in found)
    return [each.found for each in found]
