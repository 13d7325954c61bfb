"""While a cluster has no leader nobody answers, and nothing is taken for an answer."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from nats.errors import NoRespondersError

import natsctl
from natsctl.errors import (
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket.bucket import ELECTION_S, Bucket
from natsctl.jetstream.bucket.consumer import HEDGE_S
from natsctl.jetstream.bucket.hedge import AGAIN_S
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.bucket.watch import KvWatch

ELECTING_S = 9.0


class Cluster:
    """A connection to servers that have no leader for a while, and a bucket only if `made`.

    Where they have none, the leader resigns for `resigns_s` once it has said so.
    """

    def __init__(
        self, *, made: bool = True, electing_s: float = 0.0, resigns_s: float = 0.0
    ) -> None:
        self.heard: list[str] = []  # what was asked and told while there was a leader
        self.replicas: list[object] = []  # that were wanted of a new bucket, ever
        self.api_prefix = "$JS.API"
        self.publish_prefix = ""
        self.max_payload = 1024 * 1024
        self.client = self
        self.dead: list[str] = []  # sorts of requests, each of which a dead server swallows
        self.slow_s = 0.0  # how long it takes to make a consumer
        self.listening = 0  # subscriptions
        self._made = made
        self._resigns_s = resigns_s
        self._numbers = itertools.count(1)
        self._leads = asyncio.get_running_loop().time() + electing_s

    @property
    def leaderless(self) -> bool:
        return asyncio.get_running_loop().time() < self._leads

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        config = dict(body or {"deny_delete": True})
        if endpoint.startswith("STREAM.CREATE"):
            self.replicas.append(config["num_replicas"])
        if self.leaderless or self._swallowed(endpoint):
            await asyncio.sleep(timeout_s or 5)
            raise StoreTimeoutError(endpoint)
        self.heard.append(endpoint)
        if endpoint.startswith("CONSUMER.CREATE"):
            await asyncio.sleep(self.slow_s)
        if endpoint.startswith("STREAM.MSG.GET"):
            raise NotFoundError(endpoint)
        if endpoint.startswith("STREAM.INFO") and not self._made:
            self.elect(self._resigns_s)
            self._resigns_s = 0.0
            raise StoreMissingError(endpoint)
        return {"created": "then", "config": config, "state": {"last_seq": 0}}

    def _swallowed(self, endpoint: str) -> bool:
        """Take the next request of that sort, if a dead server was to answer one."""
        for sort in self.dead:
            if endpoint.startswith(sort):
                self.dead.remove(sort)
                return True
        return False

    async def request(self, subject: str, *_: object, **__: object) -> None:
        """Answer as a server does that knows of no leader."""
        raise StoreError(f"{subject} has no answer: nobody answers") from NoRespondersError()

    async def publish(self, subject: str) -> None:
        if not self.leaderless:
            self.heard.append(subject.removeprefix("$JS.API."))

    async def wait_connected(self) -> None:
        """Be connected."""

    @contextmanager
    def on_lost(self, _callback: object) -> Iterator[None]:
        yield

    def new_inbox(self) -> str:
        return f"_INBOX.{next(self._numbers)}"

    async def subscribe_raw(self, _subject: str, _receive: object) -> "Cluster":
        self.listening += 1
        return self

    async def unsubscribe(self) -> None:
        self.listening -= 1

    def elect(self, electing_s: float) -> None:
        """Have no leader for so long, from now on."""
        self._leads = asyncio.get_running_loop().time() + electing_s


def bucket(cluster: Cluster) -> Bucket:
    return Bucket(cluster, "b")  # type: ignore[arg-type]  # all of a connection that it uses


async def listed(watch: KvWatch) -> None:
    """Begin a watch, and end it."""
    async with watch() as events:
        await anext(events)


async def silent(watch: KvWatch) -> None:
    """Watch until consumer sent nothing of the consumer for too long."""

    async def follow() -> None:
        async with watch() as events:
            async for _ in events:
                pass

    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await follow()


async def test_a_bucket_that_nobody_answers_for_is_asked_for_until_somebody_does() -> None:
    cluster = Cluster(made=False, electing_s=ELECTING_S)
    with pytest.raises(StoreMissingError):
        await bucket(cluster).ensure(natsctl.kv(bytes, bucket="b", create=False))
    assert cluster.heard == ["STREAM.INFO.KV_b"]


async def test_a_bucket_that_nobody_ever_answers_for_is_given_up() -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    with pytest.raises(StoreTimeoutError):
        await bucket(Cluster(electing_s=3600)).ensure(natsctl.kv(bytes, bucket="b"))
    assert ELECTION_S <= clock() - began < 2 * ELECTION_S


async def test_no_bucket_gets_fewer_replicas_because_nobody_answered() -> None:
    cluster = Cluster(made=False, resigns_s=ELECTING_S)
    await bucket(cluster).ensure(natsctl.kv(bytes, bucket="b", replicas=None))
    assert cluster.heard[-1] == "STREAM.CREATE.KV_b"
    assert set(cluster.replicas) == {3}


async def test_a_consumer_that_broke_is_deleted_by_the_leader_that_makes_the_next_one() -> None:
    cluster = Cluster()
    watch = KvWatch(bucket(cluster))
    await silent(watch)
    cluster.heard.clear()
    await listed(watch)
    assert [told for told in cluster.heard if told.startswith("CONSUMER")] == [
        "CONSUMER.DELETE.KV_b.natsctl-1",
        "CONSUMER.CREATE.KV_b.natsctl-2.$KV.b.>",
        "CONSUMER.DELETE.KV_b.natsctl-1",
        "CONSUMER.DELETE.KV_b.natsctl-2",
    ]
    cluster.heard.clear()
    await listed(watch)
    assert "CONSUMER.DELETE.KV_b.natsctl-1" not in cluster.heard


async def test_a_consumer_that_broke_without_a_leader_is_deleted_when_the_next_attempt_ends() -> (
    None
):
    cluster = Cluster()
    watch = KvWatch(bucket(cluster))
    await silent(watch)
    cluster.elect(1.0)
    cluster.heard.clear()
    cluster.dead = ["STREAM.MSG.GET"] * 9
    with pytest.raises(StoreTimeoutError):
        await listed(watch)
    assert cluster.heard == ["STREAM.INFO.KV_b", "CONSUMER.DELETE.KV_b.natsctl-1"]


async def test_a_second_consumer_is_requested_if_a_dead_server_was_to_have_the_first() -> None:
    cluster = Cluster()
    cluster.dead = ["CONSUMER.CREATE"]
    clock = asyncio.get_running_loop().time
    began = clock()
    await listed(KvWatch(bucket(cluster)))
    assert clock() - began == pytest.approx(HEDGE_S)


async def test_a_watch_that_found_two_dead_servers_still_begins_within_a_second() -> None:
    cluster = Cluster()
    cluster.dead = ["CONSUMER.CREATE"] * 2
    clock = asyncio.get_running_loop().time
    began = clock()
    await listed(KvWatch(bucket(cluster)))
    assert clock() - began < 1.0


async def test_no_consumer_that_was_requested_is_left_at_the_server() -> None:
    cluster = Cluster()
    cluster.dead = ["CONSUMER.CREATE"] * 2
    await listed(KvWatch(bucket(cluster)))
    deleted = {told for told in cluster.heard if told.startswith("CONSUMER.DELETE")}
    assert deleted == {f"CONSUMER.DELETE.KV_b.natsctl-{number}" for number in (1, 2, 3)}
    assert cluster.listening == 0


async def test_an_answer_that_a_dying_leader_swallows_is_requested_again() -> None:
    cluster = Cluster(electing_s=1.2)
    clock = asyncio.get_running_loop().time
    began = clock()
    await listed(KvWatch(bucket(cluster)))
    assert clock() - began <= 1.2 + AGAIN_S


async def test_a_consumer_that_is_made_slowly_is_not_taken_for_a_silent_one() -> None:
    cluster = Cluster()
    cluster.slow_s = 4.0
    await listed(KvWatch(bucket(cluster)))
    assert cluster.listening == 0


@pytest.mark.parametrize("electing_s", [1.2, 3600.0])
async def test_a_write_that_no_leader_took_has_a_known_outcome(electing_s: float) -> None:
    cluster = Cluster(electing_s=electing_s)
    store = KvStore(bucket(cluster), natsctl.kv(bytes, bucket="b"))
    with pytest.raises(StoreError, match="nobody answers") as raised:
        await store.update("a", b"", revision=1)
    assert not isinstance(raised.value, StoreTimeoutError)


async def test_a_write_that_no_leader_took_fails_as_soon_as_there_is_one() -> None:
    clock = asyncio.get_running_loop().time
    store = KvStore(bucket(Cluster(electing_s=1.2)), natsctl.kv(bytes, bucket="b"))
    began = clock()
    with pytest.raises(StoreError):
        await store.update("a", b"", revision=1)
    assert clock() - began <= 1.2 + AGAIN_S
