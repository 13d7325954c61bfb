"""Delete markers expire only if no older revision would become visible."""

import base64
from collections.abc import AsyncIterator

import pytest

import natsctl
from natsctl import NatsOptions
from natsctl.errors import NotFoundError
from natsctl.model.store import Deleted, Store
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.backends import listing, put

TTL_S = 1.0


@pytest.fixture
async def nats(nats_server: NatsServer) -> AsyncIterator[Nats]:
    options = NatsOptions(servers=(nats_server.url,), marker_ttl_s=TTL_S)
    async with natsctl.connect(options, verify_s=0.5) as nats:
        yield nats


async def has_no_marker(store: Store, key: str) -> bool:
    try:
        await store.get(key)
    except NotFoundError as missing:
        return missing.deleted_at is None
    raise AssertionError(f"{key} is back")


async def headers(nats: Nats, key: str) -> str:
    """Return the headers of the newest message of *key*."""
    reply = await nats.api("STREAM.MSG.GET.KV_b", {"last_by_subj": f"$KV.b.{key}"})
    return base64.b64decode(reply["message"]["hdrs"]).decode()


async def test_a_marker_expires_if_the_bucket_keeps_one_revision(nats: Nats) -> None:
    """A watch continues then."""
    store = await nats.open(natsctl.kv(bytes, bucket="b", history=1))
    await put(store, "a")
    async with store.watch() as events:
        await listing(events)
        revision = await store.delete("a")
        assert await anext(events) == Deleted("a", revision)
        await eventually(lambda: has_no_marker(store, "a"))
        stored = await put(store, "a", "again")
        shown = await anext(events)
    assert getattr(shown, "stored", None) == stored


async def test_a_marker_that_hides_older_revisions_does_not_expire(nats: Nats) -> None:
    """Without the marker, the server would return the older revision."""
    store = await nats.open(natsctl.kv(bytes, bucket="b", history=5))
    await put(store, "a")
    marker = await store.delete("a")
    await put(store, "b")
    await store.delete("b", purge=True)
    await eventually(lambda: has_no_marker(store, "b"))  # so the TTL has passed
    with pytest.raises(NotFoundError) as missing:
        await store.get("a")
    assert missing.value.deleted_at == marker


async def test_a_bucket_whose_messages_cannot_expire_keeps_its_markers(nats: Nats) -> None:
    stream_config = {"name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1}
    await nats.api("STREAM.CREATE.KV_b", {**stream_config, "allow_rollup_hdrs": True})
    store = await nats.open(natsctl.kv(bytes, bucket="b"))
    await put(store, "a")
    marker = await store.delete("a")
    with pytest.raises(NotFoundError) as missing:
        await store.get("a")
    assert missing.value.deleted_at == marker


async def test_what_was_deleted_stays_deleted_after_a_crash(nats_server: NatsServer) -> None:
    """An expired marker would let the server show an older value, so markers stay by default."""
    async with natsctl.connect(nats_server.url) as nats:
        store = await nats.open(natsctl.kv(bytes, bucket="b", history=1))
        for key in ("a", "b"):
            for number in range(3):
                await put(store, key, f"{number}")
            await store.delete(key, purge=key == "b")
            assert "Nats-TTL" not in await headers(nats, key)
        nats_server.kill()
        await nats_server.start()
        await nats.connection.wait_connected()
        for key in ("a", "b"):
            assert not await has_no_marker(store, key)
