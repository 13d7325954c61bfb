"""`reads`: a sync can read any object, and a change of the object syncs the key again."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    InvalidKeyError,
    InvalidObjectError,
    Object,
    PermissionDeniedError,
    UsageError,
    kube,
    kv,
    primary,
)
from natsctl.testing import Harness, MemoryStore, running
from tests.support.controllers.app_controller import APPS
from tests.support.stores.documents import put


class LimitsSpec(msgspec.Struct, frozen=True):
    most: int


class Limits(Object, frozen=True):
    spec: LimitsSpec


LIMITS = kv(Limits, bucket="limits")
SECRETS = kube("v1", "Secret", namespace="default")
Read = Callable[["Readers", str], Awaitable[object]]


async def nothing(_readers: "Readers", _key: str) -> None:
    """Read nothing."""


class Readers(Controller):
    """Calls `read` in each sync and records the results."""

    apps = primary(APPS)
    read: Read = staticmethod(nothing)

    def __init__(self, read: Read = nothing) -> None:
        self.read = read
        self.seen: list[tuple[str, object]] = []

    async def sync_handler(self, key: str) -> float | None:
        self.seen.append((key, await self.read(self, key)))
        return None

    def last(self, key: str) -> object:
        return [content for reader, content in self.seen if reader == key][-1]

    def keys(self) -> list[str]:
        return [key for key, _ in self.seen]


def limits(limit: int, **labels: str) -> bytes:
    return json.dumps({"metadata": {"labels": labels}, "spec": {"most": limit}}).encode()


def limit_called(name: str) -> Read:
    async def read(readers: Readers, _key: str) -> int | None:
        current = await readers.reads.get(LIMITS, name)
        return None if current is None else current.spec.most

    return read


def limits_labelled(labels: str) -> Read:
    async def read(readers: Readers, _key: str) -> dict[str, int]:
        current = await readers.reads.list(LIMITS, labels=labels)
        return {key: entry.spec.most for key, entry in current.items()}

    return read


async def app(harness: Harness, key: str, text: str = "hi") -> None:
    await put(harness.stores.store(APPS), key, {"spec": {"text": text}})
    await harness.run_until_idle()


def buckets(harness: Harness) -> MemoryStore:
    return harness.stores.store(LIMITS)


async def test_a_creation_a_change_and_a_deletion_of_a_read_object_sync_the_key() -> None:
    readers = Readers(limit_called("eu"))
    async with running(readers) as harness:
        await app(harness, "shop")
        for limit in (1, 2):
            await put(buckets(harness), "eu", limits(limit))
            await harness.run_until_idle()
        await buckets(harness).delete("eu")
        await harness.run_until_idle()
        assert [content for _, content in readers.seen] == [None, 1, 2, None]
        assert buckets(harness).watches == 1
    assert buckets(harness).watches == 0


async def test_all_keys_that_read_an_object_share_one_watch_and_are_synced() -> None:
    readers = Readers(limit_called("eu"))
    async with running(readers) as harness:
        for number in range(20):
            await app(harness, f"shop-{number}")
        assert (readers.reads.watch_count, buckets(harness).watches) == (1, 1)
        readers.seen.clear()
        await put(buckets(harness), "eu", limits(1))
        await harness.run_until_idle()
        assert sorted(readers.keys()) == sorted(f"shop-{number}" for number in range(20))


async def test_an_object_that_the_next_sync_does_not_read_is_no_longer_watched() -> None:
    readers = Readers(limit_called("eu"))
    async with running(readers) as harness:
        await app(harness, "shop")
        readers.read = limit_called("us")
        await app(harness, "shop", "other")
        assert readers.reads.depends_on("shop") == ["Limits.limits us"]
        assert buckets(harness).watches == 1
        readers.seen.clear()
        await put(buckets(harness), "eu", limits(1))
        await harness.run_until_idle()
        assert readers.seen == []
        await put(buckets(harness), "us", limits(1))
        await harness.run_until_idle()
        assert readers.seen == [("shop", 1)]


async def test_a_failed_sync_keeps_the_watches_of_its_key() -> None:
    readers = Readers(limit_called("eu"))

    async def fail(_readers: Readers, _key: str) -> object:
        raise RuntimeError("on purpose")

    async with running(readers) as harness:
        await app(harness, "shop")
        readers.read = fail
        await put(harness.stores.store(APPS), "shop", {"spec": {"text": "other"}})
        await asyncio.sleep(1)
        assert readers.reads.depends_on("shop") == ["Limits.limits eu"]
        readers.read = limit_called("eu")
        await harness.run_until_idle()


async def test_a_label_selection_syncs_the_key_if_an_object_enters_changes_or_leaves() -> None:
    readers = Readers(limits_labelled("tier=gold"))
    async with running(readers) as harness:
        await put(buckets(harness), "eu", limits(1, tier="tin"))
        await app(harness, "shop")
        for limit, tier in ((2, "gold"), (3, "gold"), (4, "tin"), (5, "tin")):
            await put(buckets(harness), "eu", limits(limit, tier=tier))
            await harness.run_until_idle()
        assert [contents for _, contents in readers.seen] == [{}, {"eu": 2}, {"eu": 3}, {}]


async def test_a_change_while_a_sync_reads_is_never_lost() -> None:
    readers = Readers()

    async def slowly(self: Readers, key: str) -> object:
        current = await limit_called("eu")(self, key)
        await asyncio.sleep(1)
        return current

    readers.read = slowly
    async with running(readers) as harness:
        await put(harness.stores.store(APPS), "shop", {"spec": {}})
        await asyncio.sleep(0.5)
        await put(buckets(harness), "eu", limits(7))
        await harness.run_until_idle()
        assert readers.last("shop") == 7


async def test_a_revoked_permission_fails_the_sync_until_it_is_granted_again() -> None:
    readers = Readers(limit_called("eu"))
    async with running(readers) as harness:
        await put(buckets(harness), "eu", limits(1))
        await app(harness, "shop")
        buckets(harness).fail(PermissionDeniedError("you may not"))
        await asyncio.sleep(1)
        assert readers.reads.watch_count == 0
        assert "PermissionDeniedError" in harness.runtime.explain("shop").syncs[-1].error
        buckets(harness).fail(None)
        await put(buckets(harness), "eu", limits(2))
        await harness.run_until_idle()
        assert readers.last("shop") == 2
        assert readers.reads.watch_count == 1


async def test_reading_an_object_that_was_never_valid_raises_invalid_object() -> None:
    readers = Readers(limit_called("eu"))
    async with running(readers) as harness:
        await put(buckets(harness), "eu", b"junk")
        await put(harness.stores.store(APPS), "shop", {"spec": {}})
        await asyncio.sleep(1)
        assert InvalidObjectError.__name__ in harness.runtime.explain("shop").syncs[-1].error
        await put(buckets(harness), "eu", limits(1))
        await harness.run_until_idle()
        assert readers.seen == [("shop", 1)]


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        (lambda reads: reads.get(LIMITS, "e*"), InvalidKeyError),
        (lambda reads: reads.get(LIMITS, "eu.>"), InvalidKeyError),
        (lambda reads: reads.get(LIMITS, ""), InvalidKeyError),
        (lambda reads: reads.get(SECRETS, "other/one"), InvalidKeyError),
        (lambda reads: reads.get(SECRETS, "one"), InvalidKeyError),
        (lambda reads: reads.list(kv(LimitsSpec, bucket="plain"), labels="a=b"), UsageError),
    ],
)
async def test_an_illegal_read_is_refused(
    attempt: Callable[[Any], Awaitable[object]], error: type[Exception]
) -> None:
    async def read(self: Readers, _key: str) -> object:
        with pytest.raises(error):
            await attempt(self.reads)
        return "refused"

    readers = Readers(read)
    async with running(readers) as harness:
        await app(harness, "shop")
        assert readers.last("shop") == "refused"
        assert readers.reads.watch_count == 0


async def test_a_read_outside_a_sync_is_refused() -> None:
    readers = Readers()
    async with running(readers):
        with pytest.raises(UsageError, match="within a sync"):
            await readers.reads.get(LIMITS, "eu")
