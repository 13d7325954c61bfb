"""Contract tests of buckets: legal keys and values, and kinds with a key filter."""

from collections.abc import Awaitable, Callable

import pytest

import natsctl
from natsctl.errors import InvalidKeyError, NotFoundError, TooLargeError, UsageError
from natsctl.model.store import Applied, Listed, Store
from tests.support.stores.backends import Backend, Note, listing, note, of_buckets, put, take

pytestmark = of_buckets

UNUSUAL = ["a/b=c", "a.b.c", "k" * 200, "-", "_a", "=", "/", "A.b-c/d_e=f.0", "a._kv"]
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


async def opened(backend: Backend, keys: str | list[str]) -> Store:
    return await backend.stores.open(natsctl.kv(Note, bucket="notes", keys=keys, storage="memory"))


class TestKeys:
    async def test_unusual_legal_keys_can_be_written_read_watched_and_deleted(
        self, store: Store
    ) -> None:
        """Keys are case-sensitive."""
        for key in UNUSUAL:
            stored = await put(store, key)
            assert await store.get(key) == stored
            assert await store.history(key) == [stored]
            async with store.watch() as events:
                assert (await listing(events))[-2] == Applied(stored)
                await store.delete(key)
                await take(events, 1)
            with pytest.raises(NotFoundError):
                await store.get(key)
            await store.delete(key, purge=True)
        lower, upper = await put(store, "a"), await put(store, "A")
        assert [await store.get("a"), await store.get("A")] == [lower, upper]

    async def test_every_call_refuses_an_illegal_key(self, store: Store) -> None:
        stored = await put(store, "a")
        for call in CALLS.values():
            for key in ILLEGAL:
                with pytest.raises(InvalidKeyError):
                    await call(store, key)
        assert await store.get("a") == stored


class TestValues:
    async def test_any_bytes_are_read_as_they_were_written(self, store: Store) -> None:
        values = [b"", b"\x00\xff\r\n", b"no JSON", b"x" * 500_000]
        async with store.watch() as events:
            await listing(events)
            for number, value in enumerate(values):
                key = f"k{number}"
                stored = await store.create(key, value)
                assert stored.value == value
                assert await store.get(key) == stored
                assert await store.history(key) == [stored]
                assert await take(events, 1) == [Applied(stored)]
        async with store.watch() as events:
            _, *shown, _ = await listing(events)
        assert [event.stored.value for event in shown if isinstance(event, Applied)] == values

    async def test_a_value_above_the_declared_size_is_refused(self, backend: Backend) -> None:
        kind = natsctl.kv(bytes, bucket="small", max_value_bytes=1000, storage="memory")
        store = await backend.stores.open(kind)
        stored = await store.create("a", b"x" * 900)
        with pytest.raises(TooLargeError, match=r"a of small.* 1001 bytes"):
            await store.update("a", b"x" * 1001, revision=stored.revision)
        assert await store.get("a") == stored

    async def test_a_value_above_the_limit_of_the_server_is_refused_and_the_store_still_works(
        self, store: Store
    ) -> None:
        async with store.watch() as events:
            await listing(events)
            for excess in (-10, 0, 1, 1_000_000):
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
            (["eu.>", "us.*"], ["eu.a.b", "us.a"], ["us.a.b", "eu", "asia.a"]),
        ],
    )
    async def test_a_watch_shows_only_matching_keys(
        self,
        backend: Backend,
        store: Store,
        keys: str | list[str],
        inside: list[str],
        outside: list[str],
    ) -> None:
        filtered = await opened(backend, keys)
        for key in outside:
            await put(store, key)
        first = await put(store, inside[0])
        for key in outside:
            await store.delete(key)
        async with filtered.watch() as events:
            _, *shown, end = await listing(events)
            assert shown == [Applied(first)]
            for key in outside:
                await put(store, key)
            last = await put(store, inside[-1], "2")
            assert await take(events, 1) == [Applied(last)]
        assert isinstance(end, Listed)
        assert end.revision >= first.revision

    async def test_a_filtered_kind_reads_and_writes_only_matching_keys(
        self, backend: Backend, store: Store
    ) -> None:
        other = await put(store, "other.a")
        filtered = await opened(backend, "team.>")
        for call in CALLS.values():
            with pytest.raises(InvalidKeyError, match=r"other\.a.* does not match .*team\.>"):
                await call(filtered, "other.a")
        assert await store.get("other.a") == other
        async with filtered.watch() as events:
            assert len(await listing(events)) == 2  # its begin and its end
        stored = await put(filtered, "team.a")
        assert await store.get("team.a") == stored

    async def test_two_kinds_of_one_bucket_keep_their_types(self, backend: Backend) -> None:
        typed = await backend.stores.open(natsctl.kv(Note, bucket="both", storage="memory"))
        plain = await backend.stores.open(natsctl.kv(dict, bucket="both", storage="memory"))
        assert (typed.kind.plain, plain.kind.plain) == (False, True)

    async def test_an_illegal_bucket_name_is_refused(self, backend: Backend) -> None:
        with pytest.raises(UsageError, match=r"no\.bucket"):
            await backend.stores.open(natsctl.kv(Note, bucket="no.bucket"))
