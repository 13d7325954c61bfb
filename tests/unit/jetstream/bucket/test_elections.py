"""Requests, watches and writes while the leader of a stream is being elected."""

import asyncio
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from nats.errors import NoRespondersError

import natsctl
from natsctl import Kind, NatsOptions
from natsctl.errors import (
    NotFoundError,
    NotLeadingError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket import ELECTION_S, Bucket
from natsctl.jetstream.feed import AGAIN_S
from natsctl.jetstream.requests import result_of
from natsctl.jetstream.store import PAUSES_S, KvStore
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import WriteGuard

ELECTING_S = 9.0


class Cluster:
    """A connection to servers without a leader for `electing_s`, with a bucket if `has_bucket`.

    If the bucket does not exist, the leader resigns for `resigns_s` after it reported that once.
    """

    def __init__(
        self, *, has_bucket: bool = True, electing_s: float = 0.0, resigns_s: float = 0.0
    ) -> None:
        self.requests: list[str] = []  # requests and messages that a leader received
        self.replicas: list[object] = []  # replicas of each request to create the bucket
        self.options = NatsOptions()
        self.last_seq = 0
        self.max_payload = 1024 * 1024
        self.client = self.watches = self
        self.dropped: list[str] = []  # prefixes of requests that get no response, one each
        self.accepts_s = math.inf  # the time from which messages are stored
        self.slow_s = 0.0  # duration of a request to create a consumer
        self.refusal: Mapping[str, object] = {}  # what is answered without a leader, if anything
        self._has_bucket = has_bucket
        self._resigns_s = resigns_s
        self._numbers = itertools.count(1)
        self._leader_at_s = asyncio.get_running_loop().time() + electing_s

    @property
    def leaderless(self) -> bool:
        return asyncio.get_running_loop().time() < self._leader_at_s

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
        if self.leaderless or self._is_dropped(endpoint):
            await asyncio.sleep(timeout_s or 5)
            result_of(json.dumps({"error": self.refusal or None}).encode(), endpoint)
            raise StoreTimeoutError(endpoint)
        self.requests.append(endpoint)
        if endpoint.startswith("CONSUMER.CREATE"):
            await asyncio.sleep(min(self.slow_s, timeout_s or 5))
            if self.slow_s > (timeout_s or 5):
                raise StoreTimeoutError(endpoint)
        if endpoint.startswith("STREAM.MSG.GET"):
            raise NotFoundError(endpoint)
        if endpoint.startswith("STREAM.INFO") and not self._has_bucket:
            self.elect(self._resigns_s)
            self._resigns_s = 0.0
            raise StoreMissingError(endpoint)
        state = {"last_seq": self.last_seq, "num_subjects": 0}
        return {"created": "then", "config": {"name": "KV_b", **config}, "state": state}

    def _is_dropped(self, endpoint: str) -> bool:
        """Return True, once for each prefix in `dropped` that matches the request."""
        for prefix in self.dropped:
            if endpoint.startswith(prefix):
                self.dropped.remove(prefix)
                return True
        return False

    async def request(self, subject: str, *_: object, **__: object) -> SimpleNamespace:
        """Fail as a request to a stream without a leader fails, unless `accepts_s` have passed."""
        if asyncio.get_running_loop().time() >= self.accepts_s:
            self.requests.append(subject)
            return SimpleNamespace(data=b'{"seq": 1}')
        raise StoreError(f"nobody answers {subject}: no leader") from NoRespondersError()

    async def publish(self, subject: str) -> None:
        if not self.leaderless:
            self.requests.append(subject.removeprefix("$JS.API."))

    traffic = 0  # no data arrives

    async def flush(self) -> None:
        """Return immediately."""

    async def wait_connected(self, *, forever: bool = True) -> None:
        """Return immediately."""

    @contextmanager
    def on_lost(self, _callback: object) -> Iterator[None]:
        yield

    def new_inbox(self) -> str:
        return f"_INBOX.{next(self._numbers)}"

    async def subscribe_raw(
        self, _subject: str, _receive: object, *, parser: object = None
    ) -> "Cluster":
        return self

    async def unsubscribe(self) -> None:
        """Do nothing."""

    def elect(self, electing_s: float) -> None:
        """Have no leader for `electing_s` from now."""
        self._leader_at_s = asyncio.get_running_loop().time() + electing_s


def bucket(cluster: Cluster) -> Bucket:
    return Bucket(cluster, "b")  # type: ignore[arg-type]  # has the methods that a bucket uses


async def open_and_close(watch: KvWatch) -> None:
    """Open a watch and close it after the first event."""
    async with watch() as events:
        await anext(events)


async def follow_until_silent(watch: KvWatch) -> None:
    """Follow a watch until it breaks because its consumer is silent."""

    async def follow() -> None:
        async with watch() as events:
            async for _ in events:
                pass

    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await follow()


async def test_ensure_repeats_a_request_without_a_response_until_a_leader_is_elected() -> None:
    cluster = Cluster(has_bucket=False, electing_s=ELECTING_S)
    with pytest.raises(StoreMissingError):
        await bucket(cluster).ensure(natsctl.kv(bytes, bucket="b", create=False))
    assert cluster.requests == ["STREAM.INFO.KV_b"]


async def test_ensure_gives_up_after_the_election_timeout() -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    with pytest.raises(StoreTimeoutError):
        await bucket(Cluster(electing_s=3600)).ensure(natsctl.kv(bytes, bucket="b"))
    assert ELECTION_S <= clock() - started < 2 * ELECTION_S


@pytest.mark.parametrize(
    "refusal",
    [
        {},  # silence
        {"err_code": 10008, "description": "JetStream system temporarily unavailable"},
        {"err_code": 10005, "description": "no suitable peers for placement, peer offline"},
    ],
)
async def test_a_cluster_that_starts_does_not_reduce_the_replicas_of_a_new_bucket(
    refusal: dict[str, object],
) -> None:
    cluster = Cluster(has_bucket=False, resigns_s=ELECTING_S)
    cluster.refusal = refusal
    await bucket(cluster).ensure(natsctl.kv(bytes, bucket="b", replicas=None))
    assert cluster.requests[-1] == "STREAM.CREATE.KV_b"
    assert set(cluster.replicas) == {3}


async def test_a_broken_consumer_is_deleted_before_the_next_one_is_created() -> None:
    cluster = Cluster()
    watch = KvWatch(bucket(cluster))
    await follow_until_silent(watch)
    cluster.requests.clear()
    await open_and_close(watch)
    assert [request for request in cluster.requests if request.startswith("CONSUMER")] == [
        "CONSUMER.DELETE.KV_b.natsctl-1",
        "CONSUMER.CREATE.KV_b.natsctl-2.>",
        "CONSUMER.DELETE.KV_b.natsctl-1",
        "CONSUMER.DELETE.KV_b.natsctl-2",
    ]
    cluster.requests.clear()
    await open_and_close(watch)
    assert "CONSUMER.DELETE.KV_b.natsctl-1" not in cluster.requests


async def test_few_consumers_are_requested_while_the_server_looks_at_a_million_keys() -> None:
    cluster = Cluster()
    cluster.slow_s = 8.0
    await open_and_close(KvWatch(bucket(cluster)))
    created = [request for request in cluster.requests if request.startswith("CONSUMER.CREATE")]
    assert len(created) <= 7


async def test_a_watch_starts_within_a_second_after_two_requests_without_a_response() -> None:
    cluster = Cluster()
    cluster.dropped = ["CONSUMER.CREATE"] * 2
    clock = asyncio.get_running_loop().time
    started = clock()
    await open_and_close(KvWatch(bucket(cluster)))
    assert clock() - started < 1.0


@pytest.mark.parametrize("electing_s", [1.2, 3600.0])
async def test_a_write_without_a_leader_fails_soon_with_a_known_outcome(electing_s: float) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    store = KvStore(bucket(Cluster(electing_s=electing_s)), natsctl.kv(bytes, bucket="b"))
    with pytest.raises(StoreError, match="nobody answers") as raised:
        await store.update("a", b"", revision=1)
    assert not isinstance(raised.value, StoreTimeoutError)
    assert electing_s > 2 or clock() - started <= electing_s + AGAIN_S + sum(PAUSES_S)


class Term(WriteGuard):
    """Permits writes until the event loop's clock is at `ends_s`."""

    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s

    def check(self, kind: Kind[Any] | None) -> None:
        if asyncio.get_running_loop().time() >= self.ends_s:
            raise NotLeadingError("the term is over")


async def test_a_write_is_not_sent_again_after_the_end_of_the_term() -> None:
    cluster, start = Cluster(electing_s=1.2), asyncio.get_running_loop().time()
    cluster.accepts_s = start + 1.2
    store = KvStore(bucket(cluster), natsctl.kv(dict, bucket="b"), guard=Term(start + 0.5))
    with pytest.raises(NotLeadingError):
        await store.create("a", b"{}")
    assert [subject for subject in cluster.requests if "$KV" in subject] == []
