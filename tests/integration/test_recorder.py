"""Events about keys are recorded in a stream, aggregated and limited."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import EventType, NatsOptions
from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.events import (
    AGE_S,
    STREAM,
    KvEvent,
    StreamRecorder,
    events_between,
    events_of,
)
from natsctl.telemetry import outbox
from natsctl.telemetry.outbox import BURST
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.tcp_proxy import CutProxy

NORMAL, WARNING = EventType.NORMAL, EventType.WARNING


async def info(nats: Nats) -> Any:
    query = {"subjects_filter": ">"}
    return await nats.connection.api(f"STREAM.INFO.{STREAM}", query)


async def events(nats: Nats, subject: str = ">") -> list[KvEvent]:
    """Return the events on a subject below `natsctl.events`, oldest first."""
    recorded: list[KvEvent] = []
    query: dict[str, object] = {"seq": 1, "next_by_subj": f"natsctl.events.{subject}"}
    while True:
        try:
            reply = await nats.connection.api(f"STREAM.MSG.GET.{STREAM}", query)
        except (NotFoundError, StoreMissingError):
            return recorded
        data = base64.b64decode(reply["message"]["data"])
        recorded.append(msgspec.json.decode(data, type=KvEvent))
        query["seq"] = reply["message"]["seq"] + 1


async def sent(nats: Nats, count: int) -> list[KvEvent]:
    """Wait until this many messages are recorded, and return them."""

    async def has_count() -> list[KvEvent]:
        recorded = await events(nats)
        assert len(recorded) >= count
        return recorded

    recorded: list[KvEvent] = await eventually(has_count)
    return recorded


class TestRecording:
    async def test_an_event_is_a_message_with_all_fields(self, nats: Nats) -> None:
        async with nats.recorder("apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", '"shop" synced successfully')
        [event] = await events(nats)
        assert (event.controller, event.key, event.type) == ("apps", "shop", "Normal")
        assert (event.reason, event.message) == ("Synced", '"shop" synced successfully')
        assert event.count == 1
        assert event.first == event.last
        async with nats.recorder("sites") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no way to nats://ann:hush@hub")
        (event,) = await events(nats, "sites.>")
        assert event.message == "no way to nats://***@hub"

    async def test_the_first_event_makes_a_limited_stream_with_a_subject_for_each_key(
        self, nats: Nats
    ) -> None:
        async with nats.recorder("apps") as apps, nats.recorder("sites") as sites:
            with pytest.raises(StoreMissingError):
                await info(nats)
            apps.event("shop", NORMAL, "Synced", "hi")
            apps.event("team.a/b=c", NORMAL, "Synced", "hi")
            sites.event("shop", WARNING, "SyncFailed", "ho")
        stream = await info(nats)
        assert stream["state"]["subjects"] == {
            "natsctl.events.apps.shop": 1,
            "natsctl.events.apps.team.a/b=c": 1,
            "natsctl.events.sites.shop": 1,
        }
        assert [event.message for event in await events(nats, "sites.>")] == ["ho"]
        config = stream["config"]
        assert config["subjects"] == ["natsctl.events.>"]
        assert config["max_age"] == AGE_S * 1_000_000_000
        assert config["max_bytes"] > 0
        assert config["max_msgs_per_subject"] == BURST
        assert config["discard"] == "old"


class TestAggregating:
    async def test_pending_repeats_are_one_event(self, nats: Nats) -> None:
        async with nats.recorder("apps") as recorder:
            for _ in range(100):
                recorder.event("shop", WARNING, "SyncFailed", "no")
        [event] = await events(nats)
        assert event.count == 100
        assert recorder.dropped == 0

    async def test_a_repeat_of_a_sent_event_increases_its_count(
        self, nats: Nats, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "QUIET_S", 0.1)
        monkeypatch.setattr(outbox, "GATHER_S", 0.1)
        monkeypatch.setattr("natsctl.jetstream.events.REPEAT_S", 3600)
        async with nats.recorder("apps") as recorder:
            for count in (1, 2, 3):
                recorder.event("shop", WARNING, "SyncFailed", "no")
                await sent(nats, count)
            recorder.event("shop", NORMAL, "Synced", "yes")
            recorder.event("shop", WARNING, "SyncFailed", "no")
        *recorded, _, _ = await events(nats)
        assert [event.count for event in recorded] == [1, 2, 3]
        assert len({event.first for event in recorded}) == 1
        assert recorded[-1].last > recorded[-1].first
        newest = await events_of(nats.connection, "apps", "shop")
        assert [(event.message, event.count) for event in newest] == [("yes", 1), ("no", 4)]


class TestLimiting:
    async def test_the_events_of_a_key_are_limited_to_the_burst(self, nats: Nats) -> None:
        async with nats.recorder("apps") as recorder:
            for number in range(BURST + 10):
                recorder.event("noisy", WARNING, "SyncFailed", str(number))
        assert [event.message for event in await events(nats)] == [str(n) for n in range(BURST)]
        assert recorder.dropped == 10


class TestEnding:
    async def test_pending_events_are_sent_before_the_end(self, nats: Nats) -> None:
        async with nats.recorder("apps") as recorder:
            for number in range(200):
                recorder.event(f"k{number}", NORMAL, "Synced", "hi")
        assert len(await events(nats)) == 200

    async def test_an_event_that_is_being_sent_is_sent_before_the_end(self, nats: Nats) -> None:
        for steps in range(8):
            async with nats.recorder("apps") as recorder:
                recorder.event(f"shop-{steps}", NORMAL, "Synced", "hi")
                for _ in range(steps):
                    await asyncio.sleep(0)
        assert [event.count for event in await events(nats)] == [1] * 8

    async def test_the_end_does_not_wait_long_for_a_silent_server(
        self,
        cut_proxy: CutProxy,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(outbox, "CLOSE_S", 2.0)
        for_ever = NatsOptions(servers=(cut_proxy.url,), request_timeout_s=3600, silence_s=3600)
        async with natsctl.connect(for_ever) as nats:
            async with asyncio.timeout(60), nats.recorder("apps") as recorder:
                cut_proxy.freeze()
                recorder.event("shop", NORMAL, "Synced", "hi")
            cut_proxy.thaw()
        assert "events were not sent in time events=1" in caplog.messages


class TestFailing:
    async def test_an_event_that_cannot_be_sent_is_dropped_and_counted(
        self, nats: Nats, caplog: pytest.LogCaptureFixture
    ) -> None:
        config = {"name": "other", "subjects": ["natsctl.events.apps.>"]}
        await nats.connection.api("STREAM.CREATE.other", config)
        async with nats.recorder("apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", "hi")
            await eventually(lambda: recorder.dropped == 1)
        assert any("cannot send event object=shop" in message for message in caplog.messages)

    async def test_recording_never_waits_and_never_raises(
        self, cut_proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox, "PENDING_MAX", 100)
        async with natsctl.connect(cut_proxy.url) as nats:
            cut_proxy.cut()
            recorder = StreamRecorder(nats.connection, "apps")
            for number in range(200):
                recorder.event(f"k{number}", NORMAL, "Synced", "hi")
            assert recorder.dropped == 100


async def test_events_of_skips_foreign_messages(nats: Nats) -> None:
    connection = nats.connection
    assert await events_of(connection, "apps", "shop") == []
    async with nats.recorder("apps") as recorder:
        recorder.event("shop", NORMAL, "Synced", "one")
        await sent(nats, 1)
        deep = b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        for nonsense in (b"hello", b"{}", b"\xff", b"", deep):
            await connection.request("natsctl.events.apps.shop", nonsense)
        recorder.event("shop", WARNING, "Failed", "two")
        recorder.event("other", NORMAL, "Synced", "three")
    recorded = await events_of(connection, "apps", "shop")
    assert [event.message for event in recorded] == ["one", "two"]


async def test_of_many_events_only_the_last_are_kept_and_returned(
    nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.jetstream.events.FOUND_MAX", 100)
    async with nats.recorder("apps") as recorder:
        recorder.event("shop", NORMAL, "Synced", "old")
        (old,) = await sent(nats, 1)
    publish = nats.connection.client.publish
    for number in range(105):
        event = msgspec.structs.replace(old, key=f"k{number}", message="new")
        await publish(f"natsctl.events.apps.{event.key}", msgspec.json.encode(event))
    await nats.connection.request("natsctl.events.apps.k", b"")  # answered when all are stored
    found = await events_between(nats.connection, "*", ">")
    assert [event.key for event in found] == [f"k{number}" for number in range(5, 105)]
    of_shop = await events_between(nats.connection, "apps", "shop")
    assert [event.message for event in of_shop] == ["old"]
