"""A silent consumer breaks its watch, but a blocked event loop does not."""

import asyncio

import pytest

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.bucket.feed import BEGIN, HEARTBEAT_S, SILENCE, Feed
from natsctl.testing.time import VirtualTimeLoop

IDLE = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\n\r\n"


async def send_reply(_reply: str) -> None:
    """Do nothing."""


async def receive_heartbeats(feed: Feed, beats: int) -> None:
    for _ in range(beats):
        await asyncio.sleep(HEARTBEAT_S)
        feed.receive([(b"inbox", b"", b"", IDLE, None)])


async def exhausted(feed: Feed) -> None:
    while True:
        assert await feed.take() == []


async def test_heartbeats_keep_a_feed_alive() -> None:
    feed = Feed("$KV.b.", send_reply)
    await receive_heartbeats(feed, 20)
    assert await feed.take() == []
    feed.close()


async def test_silence_fails_a_feed() -> None:
    feed = Feed("$KV.b.", send_reply)
    await receive_heartbeats(feed, 3)
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await exhausted(feed)
    silent_s = asyncio.get_running_loop().time() - started
    assert (SILENCE - 1) * HEARTBEAT_S <= silent_s <= SILENCE * HEARTBEAT_S
    feed.close()


async def test_a_feed_waits_longer_for_the_first_heartbeat() -> None:
    feed = Feed("$KV.b.", send_reply)
    with pytest.raises(WatchBrokenError, match=f"nothing for {BEGIN * HEARTBEAT_S:g} s"):
        await exhausted(feed)
    feed.close()


async def test_a_blocked_event_loop_is_not_silence() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    feed = Feed("$KV.b.", send_reply)
    for _ in range(5):
        loop.jump(60)
        await receive_heartbeats(feed, 1)
    assert await feed.take() == []
    feed.close()
