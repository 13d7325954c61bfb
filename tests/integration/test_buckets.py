"""Buckets are created as their kinds declare them, and a different option is an error."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsctl
from natsctl import NatsOptions
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
)
from natsctl.model.store import Applied, Deleted
from tests.support.clients.nats import Nats
from tests.support.patience import WAIT_S
from tests.support.servers.nats_server import NatsCluster, NatsServer
from tests.support.stores.backends import listing, put, take

SECOND = 1_000_000_000
LONG_S = 3600  # no object expires during a test
SHORT_S = 4  # after which an object expires, and then the marker of its expiry


async def config(nats: Nats, bucket: str) -> dict[str, Any]:
    stream_config: dict[str, Any] = (await nats.connection.api(f"STREAM.INFO.KV_{bucket}"))[
        "config"
    ]
    return stream_config


async def create_bucket(nats: Nats, bucket: str, **options: Any) -> None:
    """Create a bucket as `nats kv add` does, with these options."""
    stream_config = {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        **options,
    }
    await nats.connection.api(f"STREAM.CREATE.KV_{bucket}", stream_config)


async def expire_after(nats: Nats, bucket: str, seconds: int) -> None:
    """Change the time to live of the objects in a bucket."""
    ttl = {"max_age": seconds * SECOND, "duplicate_window": SECOND}
    await nats.connection.api(f"STREAM.UPDATE.KV_{bucket}", {**await config(nats, bucket), **ttl})


class TestCreating:
    async def test_a_bucket_has_the_stream_options_that_other_clients_expect(
        self, nats: Nats
    ) -> None:
        await nats.open(natsctl.kv(bytes, bucket="b"))
        created = await config(nats, "b")
        assert created["discard"] == "new"
        assert created["deny_delete"]
        assert created["allow_rollup_hdrs"]
        assert created["allow_direct"]

    async def test_a_bucket_is_created_with_its_declared_options(self, nats: Nats) -> None:
        kind = natsctl.kv(
            bytes, bucket="b", history=7, ttl_s=90, storage="memory", max_value_bytes=2000
        )
        await nats.open(kind)
        created = await config(nats, "b")
        assert created["max_msgs_per_subject"] == 7
        assert created["max_age"] == 90 * SECOND
        assert created["storage"] == "memory"
        assert created["max_msg_size"] == 2000
        assert created["duplicate_window"] <= created["max_age"]

    async def test_more_replicas_than_servers_are_refused(self, nats: Nats) -> None:
        with pytest.raises(StoreError, match="replicas"):
            await nats.open(natsctl.kv(bytes, bucket="b", replicas=3))


class TestExisting:
    @pytest.mark.parametrize(
        "created",
        [
            {"max_msgs_per_subject": 1},
            {"max_age": 3600 * SECOND},
            {"storage": "memory"},
            {"max_msg_size": 2000},
            {"max_bytes": 1_000_000, "description": "ours", "compression": "s2"},
        ],
    )
    async def test_a_bucket_of_any_configuration_is_used_if_no_option_is_given(
        self, nats: Nats, created: dict[str, Any]
    ) -> None:
        await create_bucket(nats, "b", **created)
        stored = await put(await nats.open(natsctl.kv(bytes, bucket="b")), "a")
        assert await (await nats.open(natsctl.kv(bytes, bucket="b"))).get("a") == stored

    async def test_a_new_bucket_has_three_replicas_in_a_cluster(
        self, nats_cluster: NatsCluster
    ) -> None:
        async with natsctl.connect(nats_cluster.url) as nats:
            await nats.open(natsctl.kv(bytes, bucket="b"))
            assert (await config(nats, "b"))["num_replicas"] == 3


class TestDifferentOptions:
    @pytest.mark.parametrize(
        ("declared", "expected"),
        [
            ({"history": 3}, "history 5, but 3 is declared"),
            ({"ttl_s": 60.0}, "ttl_s None, but 60 is declared"),
            ({"storage": "memory"}, "storage file, but memory is declared"),
            ({"replicas": 3}, "replicas 1, but 3 is declared"),
            ({"max_value_bytes": 100}, "max_value_bytes None, but 100 is declared"),
        ],
    )
    async def test_the_error_names_the_option_with_both_values(
        self, nats: Nats, declared: dict[str, Any], expected: str
    ) -> None:
        await nats.open(natsctl.kv(bytes, bucket="b"))
        with pytest.raises(StoreDiffersError) as raised:
            await nats.open(natsctl.kv(bytes, bucket="b", **declared))
        assert f"bucket b exists with {expected}" in str(raised.value)
        assert "nats stream edit KV_b" in str(raised.value)

    async def test_a_bucket_that_differs_is_not_changed(self, nats: Nats) -> None:
        await nats.open(natsctl.kv(bytes, bucket="b"))
        before = await config(nats, "b")
        with pytest.raises(StoreDiffersError):
            await nats.open(natsctl.kv(bytes, bucket="b", history=3))
        assert await config(nats, "b") == before


class TestMissingBuckets:
    async def test_a_missing_bucket_is_not_created_if_create_is_false(self, nats: Nats) -> None:
        with pytest.raises(StoreMissingError) as raised:
            await nats.open(natsctl.kv(bytes, bucket="b", create=False))
        assert str(raised.value) == (
            "bucket b does not exist: create it with `nats kv add b`, "
            "or start a controller that declares it"
        )
        with pytest.raises(StoreMissingError):
            await config(nats, "b")

    async def test_every_call_on_a_deleted_bucket_raises_store_missing(self, nats: Nats) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        await nats.connection.api("STREAM.DELETE.KV_b")
        for call in (
            store.get("a"),
            store.create("a", b""),
            store.update("a", b"", revision=1),
            store.delete("a"),
            store.delete("a", revision=1),
            store.history("a"),
        ):
            with pytest.raises(StoreMissingError, match="bucket b does not exist"):
                await call
        with pytest.raises(StoreMissingError, match="bucket b does not exist"):
            async with store.watch() as events:
                await anext(events)


class TestExpiring:
    async def test_an_expired_object_is_a_deleted_event_and_reads_as_deleted(
        self, nats: Nats
    ) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b", ttl_s=LONG_S, storage="memory"))
        async with store.watch() as events:
            await listing(events)
            stored = await put(store, "a")
            assert await take(events, 1) == [Applied(stored)]
            await expire_after(nats, "b", SHORT_S)
            [deleted] = await take(events, 1)
        assert isinstance(deleted, Deleted)
        assert deleted.key == "a"
        assert deleted.revision > stored.revision
        with pytest.raises(NotFoundError) as raised:
            await store.get("a")
        assert raised.value.deleted_at == deleted.revision

    @pytest.mark.parametrize(("declared", "history"), [(None, 1), (1, 1), (5, 5)])
    async def test_a_bucket_with_a_ttl_leaves_the_shorter_ttls_of_other_clients(
        self, nats: Nats, declared: int | None, history: int
    ) -> None:
        kind = natsctl.kv(bytes, bucket="b", ttl_s=LONG_S, history=declared, storage="memory")
        await nats.open(kind)
        reply = await nats.connection.request("$KV.b.a", b"x", headers={"Nats-TTL": "2s"})
        revision = json.loads(reply.data)["seq"]
        stored = await nats.connection.api("STREAM.MSG.GET.KV_b", {"seq": revision})
        assert b"Nats-TTL: 2s" in base64.b64decode(stored["message"]["hdrs"])
        assert (await config(nats, "b"))["max_msgs_per_subject"] == history


class TestSizes:
    async def test_a_value_above_max_value_bytes_is_refused_with_advice(self, nats: Nats) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b", max_value_bytes=1000))
        with pytest.raises(TooLargeError) as raised:
            await store.create("a", b"x" * 1001)
        assert "a of b has 1001 bytes plus headers, which is more than" in str(raised.value)
        assert "raise max_value_bytes" in str(raised.value)

    async def test_a_value_above_max_payload_is_refused_with_advice(self, nats: Nats) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        with pytest.raises(TooLargeError) as raised:
            await store.create("a", b"x" * 1024 * 1024)
        assert "a of b has 1048576 bytes" in str(raised.value)
        assert "raise its max_payload" in str(raised.value)
        assert nats.connection.losses == 0


class TestUnknownOutcomes:
    """The acknowledgement of a write never arrives."""

    @pytest.fixture
    async def nats(self, nats_server: NatsServer) -> AsyncIterator[Nats]:
        options = NatsOptions(servers=(nats_server.url,), request_timeout_s=4.0, silence_s=WAIT_S)
        async with natsctl.connect(options) as nats:
            yield nats

    async def silent(self, nats: Nats) -> None:
        """Configure the bucket's stream to store without acknowledgements."""
        silent = {**await config(nats, "b"), "no_ack": True}
        await nats.connection.api("STREAM.UPDATE.KV_b", silent)

    async def test_a_stored_write_without_acknowledgement_is_found_by_reading_back(
        self, nats: Nats
    ) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        await self.silent(nats)
        created = await store.create("a", b"1")
        assert await store.get("a") == created
        updated = await store.update("a", b"2", revision=created.revision)
        assert await store.get("a") == updated

    async def test_a_refused_write_without_acknowledgement_has_an_unknown_outcome(
        self, nats: Nats
    ) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        kept = await store.create("a", b"1")
        await self.silent(nats)
        with pytest.raises((StoreTimeoutError, ConflictError)):
            await store.update("a", b"2", revision=kept.revision + 7)
        assert await store.get("a") == kept

    async def test_a_write_that_no_stream_stored_has_an_unknown_outcome(self, nats: Nats) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        narrow = {**await config(nats, "b"), "subjects": ["$KV.b.other.>"]}
        await nats.connection.api("STREAM.UPDATE.KV_b", narrow)
        await nats.connection.client.subscribe("$KV.b.a")  # a subscriber that never replies
        with pytest.raises(StoreTimeoutError, match="whether it took effect is unknown"):
            await store.create("a", b"1")
