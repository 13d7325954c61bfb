"""Events about objects of a cluster are aggregated, limited and valid for the API."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsctl import EventType, Reference
from natsctl.kubernetes.cluster import Kube
from natsctl.kubernetes.recorder import NOTE_MAX_BYTES, KubeRecorder
from natsctl.telemetry.outbox import BURST
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.stores.custom_resources import WatchedWire, cluster

NORMAL, WARNING = EventType.NORMAL, EventType.WARNING


@pytest.fixture
async def stores(kube_server: KubeServer) -> AsyncIterator[Kube]:
    async with cluster(kube_server) as stores:
        yield stores


@pytest.fixture
def shop(kube_namespace: str) -> Reference:
    return Reference("apps/v1", "Deployment", "shop", kube_namespace, uid="u-1")


class Reader:
    """Reads the events of a namespace."""

    def __init__(self, server: KubeServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def __call__(self) -> list[dict[str, Any]]:
        items = (await self._server.call("GET", self._path))["items"]
        return sorted(items, key=lambda event: str(event["eventTime"]))

    async def remove(self) -> None:
        await self._server.call("DELETE", self._path)

    async def until(self, count: int) -> list[dict[str, Any]]:
        """Wait until the namespace has this many events, and return them."""

        async def has_count() -> list[dict[str, Any]]:
            items = await self()
            assert len(items) == count
            return items

        items: list[dict[str, Any]] = await eventually(has_count)
        return items


@pytest.fixture
def events(kube_server: KubeServer, kube_namespace: str) -> Reader:
    return Reader(kube_server, kube_namespace)


class TestRecording:
    async def test_an_event_has_all_fields(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        """It has no part of a secret. An event without an object isn't sent."""
        long = f"{'x' * (NOTE_MAX_BYTES - 20)} nats://ann:{'hush' * 20}@hub"
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", "it is as it should be", [shop])
            recorder.event("shop", WARNING, "SyncFailed", long, [shop])
            recorder.event("shop", NORMAL, "Synced", "hi")
        assert recorder.dropped == 0
        event, failed = sorted(await events(), key=lambda event: str(event["type"]))
        assert failed["note"].endswith("x nats://***@hub")
        assert (event["type"], event["reason"]) == ("Normal", "Synced")
        assert event["note"] == "it is as it should be"
        assert event["reportingController"] == "natsctl/apps"
        assert event["reportingInstance"].startswith("apps-")
        assert event["action"]
        about = event["regarding"]
        assert (about["apiVersion"], about["kind"]) == ("apps/v1", "Deployment")
        assert (about["namespace"], about["name"]) == (shop.namespace, "shop")
        assert about["uid"] == "u-1"
        assert event["metadata"]["name"].startswith("shop.")
        assert "series" not in event

    async def test_any_controller_object_and_text_make_a_legal_event(
        self, stores: Kube, events: Reader, kube_namespace: str
    ) -> None:
        names = ("n" * 253, "a.b-c", "x" * 235 + "." + "y" * 17)
        controllers = ("apps", "Ünsäglich!", "-", "a" * 100, "a_b.c")
        for controller in controllers:
            async with stores.recorder(controller) as recorder:
                for name in names:
                    about = Reference("v1", "ConfigMap", name, kube_namespace)
                    recorder.event("shop", NORMAL, "R" * 200, "ü" * 2000, [about])
            assert recorder.dropped == 0
        recorded = await events()
        assert len(recorded) == len(controllers) * len(names)
        for event in recorded:
            note = event["note"]
            assert len(note.encode()) <= NOTE_MAX_BYTES
            assert note.rstrip("…") == "ü" * (len(note) - 1)


class TestAggregating:
    async def test_pending_repeats_are_one_event_with_a_series(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            for _ in range(100):
                recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
        [event] = await events()
        assert recorder.counted()["kubernetes", "merged"] == 99
        assert event["series"]["count"] == 100
        assert event["series"]["lastObservedTime"] >= event["eventTime"]

    async def test_an_event_that_expired_on_the_server_is_created_again(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
            await events.until(1)
            await events.remove()
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
        [event] = await events()
        assert event["series"]["count"] == 2

    async def test_a_lost_response_causes_no_second_event(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        wire = WatchedWire(stores.transport)
        wire.lose = {"POST"}
        async with Kube(wire).recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
            await eventually(lambda: recorder.dropped == 1)
            recorder.event("other", WARNING, "SyncFailed", "yes", [shop])
        assert len(await events()) == 2


async def test_the_events_of_an_object_are_limited_to_the_burst(
    stores: Kube, events: Reader, shop: Reference
) -> None:
    async with stores.recorder("apps") as recorder:
        for number in range(BURST + 10):
            recorder.event("shop", WARNING, "SyncFailed", str(number), [shop])
    assert len(await events()) == BURST
    assert recorder.dropped == 10


async def test_warnings_are_sent_before_older_events_and_one_at_a_time(
    stores: Kube, kube_namespace: str
) -> None:
    sent: list[str] = []

    class Counted(WatchedWire):
        pending_max = pending = 0

        async def call(self, method: str, path: str, **options: Any) -> Any:
            sent.append(json.loads(options["body"])["type"])
            self.pending += 1
            self.pending_max = max(self.pending_max, self.pending)
            try:
                return await super().call(method, path, **options)
            finally:
                self.pending -= 1

    wire = Counted(stores.transport)
    async with Kube(wire).recorder("apps") as recorder:
        for number in range(10):
            about = Reference("v1", "ConfigMap", f"c{number}", kube_namespace)
            recorder.event("shop", NORMAL, "Synced", "hi", [about])
            recorder.event("shop", WARNING, "SyncFailed", "no", [about])
    assert sent == ["Warning"] * 10 + ["Normal"] * 10
    assert wire.pending_max == 1


async def test_the_controllers_of_a_process_share_the_rate(stores: Kube) -> None:
    async with stores.recorder("one") as first, stores.recorder("other") as second:
        assert first.outbox.pace is second.outbox.pace


class TestPermissions:
    async def test_a_missing_permission_is_logged_once_and_events_continue_when_granted(
        self,
        kube_server: KubeServer,
        events: Reader,
        shop: Reference,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async with (
            cluster(kube_server, user="other") as other_stores,
            other_stores.recorder("apps") as recorder,
        ):
            for number in range(5):
                recorder.event("shop", NORMAL, "Synced", str(number), [shop])
            await eventually(lambda: recorder.dropped == 5)
            messages = [
                message for message in caplog.messages if "no permission to send events" in message
            ]
            assert len(messages) == 1
            assert "create events.events.k8s.io" in messages[0]
            rule = {
                "apiGroups": ["events.k8s.io"],
                "resources": ["events"],
                "verbs": ["create", "patch"],
            }
            namespace = shop.namespace
            await asyncio.to_thread(kube_server.allow, "other", [rule], namespace=namespace)

            async def sent() -> bool:
                recorder.event("shop", NORMAL, "Synced", "at last", [shop])
                return bool(await events())

            await eventually(sent, every_s=0.1)


async def test_recording_never_waits_and_never_raises(
    stores: Kube, shop: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.telemetry.outbox.PENDING_MAX", 100)
    recorder = KubeRecorder(stores.transport, "apps")
    for number in range(200):
        about = Reference("v1", "ConfigMap", f"c{number}", shop.namespace)
        recorder.event("shop", NORMAL, "Synced", "hi", [about])
    assert recorder.dropped == 100
