"""Events about objects of a cluster are where kubectl shows them: aggregated, limited, legal."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsctl.kubernetes.cluster import Kube
from natsctl.kubernetes.recorder import NOTE_MAX_BYTES, KubeRecorder, recording
from natsctl.model.manifests import Reference
from natsctl.model.recorder import BURST, EventType
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
    """Reads what events a namespace has."""

    def __init__(self, server: KubeServer, namespace: str) -> None:
        self._server = server
        self._path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def __call__(self) -> list[dict[str, Any]]:
        found = (await self._server.call("GET", self._path))["items"]
        return sorted(found, key=lambda event: str(event["eventTime"]))

    async def remove(self) -> None:
        await self._server.call("DELETE", self._path)

    async def until(self, count: int) -> list[dict[str, Any]]:
        """Wait until there are so many."""

        async def enough() -> list[dict[str, Any]]:
            found = await self()
            assert len(found) == count
            return found

        found: list[dict[str, Any]] = await eventually(enough)
        return found


@pytest.fixture
def events(kube_server: KubeServer, kube_namespace: str) -> Reader:
    return Reader(kube_server, kube_namespace)


class TestRecording:
    async def test_an_event_says_everything(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", "it is as it should be", [shop])
        [event] = await events()
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

    async def test_it_tells_no_secret_not_even_a_part_of_one(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        long = f"{'x' * (NOTE_MAX_BYTES - 20)} nats://ann:{'hush' * 20}@hub"
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", long, [shop])
        [event] = await events()
        assert event["note"].endswith("x nats://***@hub")

    async def test_each_object_has_its_own(
        self, stores: Kube, events: Reader, shop: Reference, kube_namespace: str
    ) -> None:
        config = Reference("v1", "ConfigMap", "shop", kube_namespace)
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop, config])
        kinds = [event["regarding"]["kind"] for event in await events()]
        assert sorted(kinds) == ["ConfigMap", "Deployment"]

    async def test_without_an_object_there_is_nothing_to_tell(
        self, stores: Kube, shop: Reference
    ) -> None:
        wire = WatchedWire(stores.transport)
        async with recording(wire, "apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", "hi")
        assert wire.requests == []
        assert recorder.dropped == 0

    async def test_those_of_what_has_no_namespace_are_in_the_default_one(
        self, stores: Kube, kube_server: KubeServer
    ) -> None:
        role = Reference("rbac.authorization.k8s.io/v1", "ClusterRole", "system:odd:Role")
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", NORMAL, "Synced", "hi", [role])
        found = [e["regarding"]["name"] for e in await Reader(kube_server, "default")()]
        assert "system:odd:Role" in found

    @pytest.mark.parametrize("controller", ["apps", "Ünsäglich!", "-", "a" * 100, "a_b.c"])
    @pytest.mark.parametrize("name", ["n" * 253, "a.b-c", "x" * 235 + "." + "y" * 17])
    async def test_any_controller_object_and_text_make_a_legal_event(
        self, stores: Kube, events: Reader, kube_namespace: str, controller: str, name: str
    ) -> None:
        about = Reference("v1", "ConfigMap", name, kube_namespace)
        async with stores.recorder(controller) as recorder:
            recorder.event("shop", NORMAL, "R" * 200, "ü" * 2000, [about])
        assert recorder.dropped == 0
        [event] = await events()
        note = event["note"]
        assert len(note.encode()) <= NOTE_MAX_BYTES
        assert note.rstrip("…") == "ü" * (len(note) - 1)


class TestAggregating:
    async def test_repeats_that_wait_are_one_event_with_a_series(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            for _ in range(100):
                recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
        [event] = await events()
        assert event["series"]["count"] == 100
        assert event["series"]["lastObservedTime"] >= event["eventTime"]

    async def test_later_repeats_go_on_with_the_series(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            for _ in range(3):
                recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
                await events.until(1)
        [event] = await events()
        assert event["series"]["count"] == 3

    async def test_one_that_the_server_has_dropped_is_told_anew(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
            await events.until(1)
            await events.remove()
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
        [event] = await events()
        assert event["series"]["count"] == 2

    async def test_what_differs_in_anything_is_no_repeat(
        self, stores: Kube, events: Reader, shop: Reference, kube_namespace: str
    ) -> None:
        again = Reference("apps/v1", "Deployment", "shop", kube_namespace, uid="u-2")
        async with stores.recorder("apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
            recorder.event("shop", NORMAL, "SyncFailed", "no", [shop])
            recorder.event("shop", WARNING, "Odd", "no", [shop])
            recorder.event("shop", WARNING, "SyncFailed", "yes", [shop])
            recorder.event("shop", WARNING, "SyncFailed", "no", [again])
        assert len(await events()) == 5

    async def test_an_answer_that_is_lost_makes_no_second_event(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        wire = WatchedWire(stores.transport)
        wire.lose = {"POST"}
        async with recording(wire, "apps") as recorder:
            recorder.event("shop", WARNING, "SyncFailed", "no", [shop])
            await eventually(lambda: recorder.dropped == 1)
            recorder.event("other", WARNING, "SyncFailed", "yes", [shop])
        assert len(await events()) == 2


class TestLimiting:
    async def test_of_an_object_so_many_are_told_and_no_more(
        self, stores: Kube, events: Reader, shop: Reference
    ) -> None:
        async with stores.recorder("apps") as recorder:
            for number in range(BURST + 10):
                recorder.event("shop", WARNING, "SyncFailed", str(number), [shop])
        assert len(await events()) == BURST
        assert recorder.dropped == 10

    async def test_one_request_is_on_its_way_at_a_time(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        class Counted(WatchedWire):
            most = now = 0

            async def call(self, method: str, path: str, **how: Any) -> Any:
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    return await super().call(method, path, **how)
                finally:
                    self.now -= 1

        wire = Counted(stores.transport)
        async with recording(wire, "apps") as recorder:
            for number in range(30):
                about = Reference("v1", "ConfigMap", f"c{number}", kube_namespace)
                recorder.event("shop", NORMAL, "Synced", "hi", [about])
        assert wire.most == 1
        assert len(wire.requests) == 30


class TestPermissions:
    async def test_one_that_is_missing_is_said_once_and_heals(
        self,
        kube_server: KubeServer,
        events: Reader,
        shop: Reference,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async with (
            cluster(kube_server, user="other") as others,
            others.recorder("apps") as recorder,
        ):
            for number in range(5):
                recorder.event("shop", NORMAL, "Synced", str(number), [shop])
            await eventually(lambda: recorder.dropped == 5)
            told = [
                message for message in caplog.messages if "no permission to send events" in message
            ]
            assert len(told) == 1
            assert "create events.events.k8s.io" in told[0]
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


async def test_telling_never_waits_and_never_raises(stores: Kube, shop: Reference) -> None:
    recorder = KubeRecorder(stores.transport, "apps")
    for number in range(20_000):
        about = Reference("v1", "ConfigMap", f"c{number}", shop.namespace)
        recorder.event("shop", NORMAL, "Synced", "hi", [about])
    assert recorder.dropped == 10_000
