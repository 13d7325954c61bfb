"""Which keys and values every bucket takes, and which part of it a kind sees."""

from collections.abc import Awaitable, Callable

import pytest

import natsctl
from natsctl.errors import InvalidKeyError, NotFoundError, TooLargeError, UsageError
from natsctl.model.store import Applied, Listed, Store
from tests.support.stores.backends import Backend, Note, listing, note, of_buckets, put, take

pytestmark = of_buckets

ODD = ["a/b=c", "a.b.c", "k" * 200, "-", "_a", "=", "/", "A.b-c/d_e=f.0", "a._kv"]
ILLEGAL = ["", ".", "a..b", ".a", "a.", "a b", "a\n", "*", "a.*", ">", "a.>", "_kv", "_kv.a", "ü"]

CALLS: dict[str, Callable[[Store, str], Awaitable[object]]] = {
    "get": lambda store, key: store.get(key),
    "create": lambda store, key: store.create(key, note("hi")),
    "update": lambda store, key: store.update(key, note("hi"), revision=1),
    "delete": lambda store, key: store.delete(key),
    "delete of a revision": lambda store, key: store.delete(key, revision=1),
    "purge": lambda store, key: store.delete(key, purge=True),
    "history": lambda store, key: store.history(key),
}


async def opened(backend: Backend, keys: str) -> Store:
    return await backend.stores.open(natsctl.kv(Note, bucket="notes", keys=keys, storage="memory"))


class TestKeys:
    @pytest.mark.parametrize("key", ODD)
    async def test_odd_keys_are_keys(self, store: Store, key: str) -> None:
        stored = await put(store, key)
        assert await store.get(key) == stored
        assert await store.history(key) == [stored]
        async with store.watch() as events:
            assert (await listing(events))[1] == Applied(stored)
            await store.delete(key)
            await take(events, 1)
        with pytest.raises(NotFoundError):
            await store.get(key)

    @pytest.mark.parametrize("call", CALLS)
    async def test_illegal_keys_are_refused_by_every_call(self, store: Store, call: str) -> None:
        kept = await put(store, "a")
        for key in ILLEGAL:
            with pytest.raises(InvalidKeyError):
                await CALLS[call](store, key)
        assert await store.get("a") == kept

    async def test_keys_that_differ_in_case_are_two(self, store: Store) -> None:
        lower, upper = await put(store, "a"), await put(store, "A")
        assert [await store.get("a"), await store.get("A")] == [lower, upper]


class TestValues:
    @pytest.mark.parametrize("value", [b"", b"\x00\xff\r\n", b"no JSON", b"x" * 500_000])
    async def test_any_bytes_come_back_as_they_were_written(
        self, store: Store, value: bytes
    ) -> None:
        stored = await store.create("a", value)
        assert stored.value == value
        assert await store.get("a") == stored
        assert await store.history("a") == [stored]
        async with store.watch() as events:
            assert (await listing(events))[1] == Applied(stored)

    async def test_an_empty_value_is_told_as_applied(self, store: Store) -> None:
        async with store.watch() as events:
            await listing(events)
            stored = await store.create("a", b"")
            assert await take(events, 1) == [Applied(stored)]

    async def test_a_value_above_the_declared_size_is_refused(self, backend: Backend) -> None:
        kind = natsctl.kv(bytes, bucket="small", max_value_bytes=1000, storage="memory")
        store = await backend.stores.open(kind)
        kept = await store.create("a", b"x" * 900)
        with pytest.raises(TooLargeError, match=r"a of small.* 1001 bytes"):
            await store.update("a", b"x" * 1001, revision=kept.revision)
        assert await store.get("a") == kept

    @pytest.mark.parametrize("excess", [-10, 0, 1, 1_000_000])
    async def test_a_value_above_what_the_server_takes_is_refused_and_harms_nothing(
        self, store: Store, excess: int
    ) -> None:
        async with store.watch() as events:
            await listing(events)
            with pytest.raises(TooLargeError, match="big of notes"):
                await store.create("big", b"x" * (1024 * 1024 + excess))
            stored = await put(store, "a")
            assert await take(events, 1) == [Applied(stored)]


class TestFilter:
    @pytest.mark.parametrize(
        ("keys", "inside", "outside"),
        [
            ("team.>", ["team.a", "team.a.b"], ["team", "teams.a", "other"]),
            ("team.*", ["team.a", "team.b"], ["team.a.b", "team"]),
            ("*.db", ["a.db", "b.db"], ["a.b.db", "db", "a.dbs"]),
            ("*", ["a", "b"], ["a.b"]),
            ("a", ["a"], ["b", "a.b"]),
        ],
    )
    async def test_only_matching_keys_are_seen(
        self, backend: Backend, store: Store, keys: str, inside: list[str], outside: list[str]
    ) -> None:
        part = await opened(backend, keys)
        for key in outside:
            await put(store, key)
        first = await put(store, inside[0])
        for key in outside:
            await store.delete(key)
        async with part.watch() as events:
            _, *shown, end = await listing(events)
            assert shown == [Applied(first)]
            for key in outside:
                await put(store, key)
            last = await put(store, inside[-1], "2")
            assert await take(events, 1) == [Applied(last)]
        assert isinstance(end, Listed)
        assert end.revision >= first.revision

    @pytest.mark.parametrize("call", CALLS)
    async def test_keys_that_do_not_match_are_refused_by_every_call(
        self, backend: Backend, store: Store, call: str
    ) -> None:
        kept = await put(store, "other.a")
        part = await opened(backend, "team.>")
        with pytest.raises(InvalidKeyError, match=r"other\.a.*team\.>"):
            await CALLS[call](part, "other.a")
        assert await store.get("other.a") == kept

    async def test_what_is_written_through_a_part_is_in_the_whole(
        self, backend: Backend, store: Store
    ) -> None:
        part = await opened(backend, "team.>")
        stored = await put(part, "team.a")
        assert await store.get("team.a") == stored

    async def test_a_listing_of_a_part_without_objects_ends(
        self, backend: Backend, store: Store
    ) -> None:
        await put(store, "other")
        part = await opened(backend, "team.>")
        async with part.watch() as events:
            assert len(await listing(events)) == 2

    async def test_each_part_has_its_own_kind(self, backend: Backend) -> None:
        typed = await backend.stores.open(natsctl.kv(Note, bucket="both", storage="memory"))
        plain = await backend.stores.open(natsctl.kv(dict, bucket="both", storage="memory"))
        assert (typed.kind.plain, plain.kind.plain) == (False, True)

    async def test_a_bucket_of_an_illegal_name_is_refused(self, backend: Backend) -> None:
        with pytest.raises(UsageError, match=r"no\.bucket"):
            await backend.stores.open(natsctl.kv(Note, bucket="no.bucket"))
