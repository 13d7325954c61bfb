"""Buckets are created as their kinds declare them, and a different option is an error."""

import asyncio
import base64
import json
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
from tests.support.eventually import eventually
from tests.support.patience import WAIT_S
from tests.support.servers.nats_server import NatsCluster, NatsServer
from tests.support.stores.backends import listing, note, put, take

SECOND = 1_000_000_000
LONG_S = 3600  # no object expires during a test


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
    async def test_a_bucket_of_any_configuration_is_used_if_no_option_is_given(
        self, nats: Nats
    ) -> None:
        configurations: list[dict[str, Any]] = [
            {"max_msgs_per_subject": 1},
            {"max_age": 3600 * SECOND},
            {"storage": "memory"},
            {"max_msg_size": 2000},
            {"max_bytes": 1_000_000, "description": "ours", "compression": "s2"},
        ]
        for number, created in enumerate(configurations):
            kind = natsctl.kv(bytes, bucket=f"b{number}")
            await create_bucket(nats, kind.bucket, **created)
            stored = await put(await nats.open(kind), "a")
            assert await (await nats.open(kind)).get("a") == stored

    async def test_a_new_bucket_has_three_replicas_in_a_cluster(
        self, nats_cluster: NatsCluster
    ) -> None:
        """So does that of the leases. The connection moves to a server that's left."""
        first, *others = nats_cluster.nodes
        async with natsctl.connect(first.url) as nats:
            await nats.open(natsctl.kv(bytes, bucket="b"))
            await nats.leases(ttl_s=LONG_S).create("a", b"x")
            for bucket in ("b", "natsctl_leases"):
                assert (await config(nats, bucket))["num_replicas"] == 3
            first.kill()
            await eventually(lambda: nats.connection.losses)
            await nats.connection.wait_connected()
            assert nats.connection.state().server in {node.url for node in others}


class TestDifferentOptions:
    async def test_the_error_names_the_option_with_both_values_and_nothing_is_changed(
        self, nats: Nats
    ) -> None:
        await nats.open(natsctl.kv(bytes, bucket="b"))
        before = await config(nats, "b")
        declared: dict[str, dict[str, Any]] = {
            "history 5, but 3 is declared": {"history": 3},
            "ttl_s None, but 60 is declared": {"ttl_s": 60.0},
            "storage file, but memory is declared": {"storage": "memory"},
            "replicas 1, but 3 is declared": {"replicas": 3},
            "max_value_bytes None, but 100 is declared": {"max_value_bytes": 100},
        }
        for expected, options in declared.items():
            with pytest.raises(StoreDiffersError) as raised:
                await nats.open(natsctl.kv(bytes, bucket="b", **options))
            assert f"bucket b exists with {expected}" in str(raised.value)
            assert "nats stream edit KV_b" in str(raised.value)
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
        """The object has a time to live of its own, which is shorter than that of the marker."""
        store = await nats.open(natsctl.kv(bytes, bucket="b", ttl_s=LONG_S, storage="memory"))
        async with store.watch() as events:
            await listing(events)
            await nats.connection.request("$KV.b.a", note("hi"), headers={"Nats-TTL": "1s"})
            [stored, deleted] = await take(events, 2)
        assert isinstance(stored, Applied)
        assert isinstance(deleted, Deleted)
        assert deleted.key == "a"
        assert deleted.revision > stored.stored.revision
        with pytest.raises(NotFoundError) as raised:
            await store.get("a")
        assert raised.value.deleted_at == deleted.revision

    async def test_a_bucket_with_a_ttl_leaves_the_shorter_ttls_of_other_clients(
        self, nats: Nats
    ) -> None:
        for declared, history in ((None, 1), (1, 1), (5, 5)):
            bucket = f"b{declared}"
            kind = natsctl.kv(bytes, bucket=bucket, ttl_s=LONG_S, history=declared)
            await nats.open(kind)
            headers = {"Nats-TTL": "600s"}
            reply = await nats.connection.request(f"$KV.{bucket}.a", b"x", headers=headers)
            revision = json.loads(reply.data)["seq"]
            stored = await nats.connection.api(f"STREAM.MSG.GET.KV_{bucket}", {"seq": revision})
            assert b"Nats-TTL: 600s" in base64.b64decode(stored["message"]["hdrs"])
            assert (await config(nats, bucket))["max_msgs_per_subject"] == history


class TestSizes:
    async def test_a_value_above_a_limit_is_refused_with_advice(self, nats: Nats) -> None:
        store = await nats.open(natsctl.kv(bytes, bucket="b", max_value_bytes=1000))
        with pytest.raises(TooLargeError) as raised:
            await store.create("a", b"x" * 1001)
        assert "a of b has 1001 bytes plus headers, which is more than" in str(raised.value)
        assert "raise max_value_bytes" in str(raised.value)
        with pytest.raises(TooLargeError) as raised:
            await store.create("a", b"x" * 1024 * 1024)
        assert "a of b has 1048576 bytes" in str(raised.value)
        assert "raise its max_payload" in str(raised.value)
        assert nats.connection.losses == 0


async def test_a_write_without_an_acknowledgement_is_read_back(nats_server: NatsServer) -> None:
    """The stream stores without acknowledgements, or a subscriber that never answers gets it."""
    options = NatsOptions(servers=(nats_server.url,), request_timeout_s=4.0, silence_s=WAIT_S)
    async with natsctl.connect(options) as nats:
        store = await nats.open(natsctl.kv(bytes, bucket="b"))
        kept = [await store.create(key, b"1") for key in ("kept", "changed")]
        silent = {**await config(nats, "b"), "no_ack": True}
        await nats.connection.api("STREAM.UPDATE.KV_b", silent)
        narrow = await nats.open(natsctl.kv(bytes, bucket="narrow"))
        other = {**await config(nats, "narrow"), "subjects": ["$KV.narrow.other.>"]}
        await nats.connection.api("STREAM.UPDATE.KV_narrow", other)
        await nats.connection.client.subscribe("$KV.narrow.a")
        created, updated, refused, lost = await asyncio.gather(
            store.create("a", b"1"),
            store.update("changed", b"2", revision=kept[1].revision),
            store.update("kept", b"2", revision=kept[0].revision + 7),
            narrow.create("a", b"1"),
            return_exceptions=True,
        )
        assert await store.get("a") == created
        assert await store.get("changed") == updated
        assert await store.get("kept") == kept[0]
    assert isinstance(refused, StoreTimeoutError | ConflictError)
    assert isinstance(lost, StoreTimeoutError)
    assert "whether it took effect is unknown" in str(lost)
