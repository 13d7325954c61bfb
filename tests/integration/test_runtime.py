"""A controller on a real nats-server, with plain nats-py clients that write its buckets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, NotFoundError
from nats.js.kv import KeyValue

from controllers.rollouts import Rollouts
from natsctl import (
    ConnectError,
    Controller,
    ControllerRuntime,
    GarbageLimits,
    connect,
    finalized,
    kv,
    primary,
    secondary,
)
from tests.support.clients.bucket_keys import keys
from tests.support.clients.patient_client import patient_client
from tests.support.controllers.app_controller import App, Apps, Part, PartSpec
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

CONSUMERS_S = 8.0  # within which requested deletions take effect


@asynccontextmanager
async def running(server: NatsServer, controller: Controller) -> AsyncIterator[ControllerRuntime]:
    """Run the controller, and check at the end that no consumer is left."""
    async with connect(server.url, verify_s=1.0) as stores:
        runtime = ControllerRuntime(controller, nats=stores)
        task = asyncio.create_task(runtime.run())
        await eventually(lambda: task.done() or runtime.synced.is_set())
        try:
            yield runtime
        finally:
            runtime.stop()
            await task
    await eventually(lambda: has_no_consumer(server), within_s=CONSUMERS_S)


async def has_no_consumer(server: NatsServer) -> bool:
    assert await consumers(server) == []
    return True


async def consumers(server: NatsServer) -> list[str]:
    """Return the consumers of natsctl on the server."""
    async with plain(server) as js:
        streams = [info.config.name or "" for info in await js.streams_info()]
        names = [info.name for name in streams for info in await js.consumers_info(name)]
    return [name for name in names if name.startswith("natsctl")]


@asynccontextmanager
async def plain(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    async with patient_client(server.url) as client:
        yield client.jetstream()


async def put(bucket: KeyValue, key: str, document: dict[str, Any]) -> None:
    await bucket.put(key, json.dumps(document).encode())


async def get(bucket: KeyValue, key: str) -> dict[str, Any] | None:
    """Return the object, or None if the key does not exist."""
    try:
        document: dict[str, Any] = json.loads((await bucket.get(key)).value or b"")
    except (KeyNotFoundError, json.JSONDecodeError):
        return None
    return document


async def text(bucket: KeyValue, key: str) -> str | None:
    document = await get(bucket, key)
    return None if document is None else document["spec"]["text"]


async def becomes(bucket: KeyValue, *expected: str) -> None:
    """Wait until the bucket has exactly these keys."""

    async def is_there() -> bool:
        assert await keys(bucket) == sorted(expected)
        return True

    await eventually(is_there)


def app(words: str = "hi", *parts: str) -> dict[str, Any]:
    return {"spec": {"text": words, "parts": parts or ["main"]}}


async def test_the_measures_count_the_events_by_outcome(nats_server: NatsServer) -> None:
    sent = ("nats", "sent")
    async with running(nats_server, Apps()) as runtime, plain(nats_server) as js:
        await put(await js.key_value("apps"), "shop", {"spec": {}})
        await eventually(lambda: runtime.measures().events[sent] == 1)
    assert set(runtime.measures().events) == {sent, ("nats", "merged"), ("nats", "dropped")}


class QuietApps(Apps):
    """Collects no garbage, which would write a record at some time."""

    garbage = GarbageLimits(interval_s=3600)


async def test_many_primaries_converge_and_then_cause_no_write_and_no_sync(
    nats_server: NatsServer,
) -> None:
    count = 1000
    controller = QuietApps()
    async with plain(nats_server) as js, running(nats_server, controller) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("parts")
        names = [f"team-{number % 7}.app-{number}" for number in range(count)]
        for name in names:
            await put(apps, name, app())

        async def is_idle() -> bool:
            assert len(await keys(parts)) == count
            return runtime.idle

        async def is_remembered() -> bool:
            """Garbage collection stores the newest revision once, soon after the last change."""
            records = await js.key_value("natsctl")
            known = json.loads((await records.get(f"gc.{controller.name}")).value or b"{}")
            return bool(known["revision"] == (await revisions(js))["KV_apps"])

        await eventually(is_idle)
        await eventually(is_remembered)
        before = await revisions(js)
        syncs = list(controller.syncs)
        assert sorted(syncs) == sorted(names)  # one sync for each
        await asyncio.sleep(3)
        assert await revisions(js) == before
        assert controller.syncs == syncs


async def revisions(js: JetStreamContext) -> dict[str, int]:
    """Return the last revision of each bucket. Events may still be sent to their stream."""
    names = {str(info.config.name): info.state.last_seq for info in await js.streams_info()}
    return {name: last for name, last in names.items() if name.startswith("KV_")}


class Builders(Apps):
    """Creates an external resource for every app."""

    def __init__(self, cleaned: list[str]) -> None:
        super().__init__()
        self.cleaned = cleaned

    async def sync_handler(self, key: str) -> float | None:
        return await finalized(
            self.apps, key, "example.com/world", apply=self.build, cleanup=self.tear_down
        )

    async def build(self, key: str, app: App) -> float | None:
        await self.parts.apply(key, Part(spec=PartSpec(app.spec.text)))
        return None

    async def tear_down(self, key: str, app: App) -> float | None:
        self.cleaned.append(f"{key} {app.spec.text}")
        return None


async def test_cleanup_runs_once_for_every_kind_of_deletion(
    nats_server: NatsServer,
) -> None:
    cleaned: list[str] = []
    async with plain(nats_server) as js:
        controller = Builders(cleaned)
        async with running(nats_server, controller):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("marked", "bypassed", "away"):
                await put(apps, key, app(key))
            await becomes(parts, "marked", "bypassed", "away")
            await controller.apps.delete("marked")
            await apps.delete("bypassed")
            await becomes(parts, "away")
            await becomes(apps, "away")
        await apps.delete("away")
        for _ in range(2):
            async with running(nats_server, Builders(cleaned)) as runtime:
                await becomes(parts)
                await eventually(lambda: runtime.idle)
    assert sorted(cleaned) == ["away away", "bypassed bypassed", "marked marked"]


class FastGarbage(Apps):
    garbage = GarbageLimits(interval_s=0.1, grace_s=0.5)


@pytest.mark.parametrize("loss", ["recreated", "recreated while nobody ran", "purged"])
async def test_a_recreated_or_purged_primary_bucket_deletes_no_secondary(
    nats_server: NatsServer, loss: str
) -> None:
    all_parts = ["bar.main", "shop.main"]
    async with plain(nats_server) as js:
        async with running(nats_server, FastGarbage()) as runtime:
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("bar", "shop"):
                await put(apps, key, app())
            await becomes(parts, *all_parts)
            await eventually(lambda: has_gc_record(js))
            if loss == "recreated":
                await js.delete_key_value("apps")
                await js.create_key_value(bucket="apps", history=5)
            if loss == "purged":
                await js.purge_stream("KV_apps")
            if loss != "recreated while nobody ran":
                await wait_until_refused(runtime)
            assert await keys(parts) == all_parts
        if loss == "recreated while nobody ran":
            await js.delete_key_value("apps")
        async with running(nats_server, FastGarbage()) as runtime:
            await wait_until_refused(runtime)
            await asyncio.sleep(1.5)
            assert await keys(parts) == all_parts

            plan = await runtime.garbage_plan()
            assert [orphan.key for orphan in plan.orphans] == all_parts
            assert len((await runtime.garbage_apply(plan)).orphans) == 2
            assert await keys(parts) == []


async def has_gc_record(js: JetStreamContext) -> bool:
    """Return whether a GC cycle has recorded owners."""
    gc_record = await get(await js.key_value("natsctl"), "gc.fastgarbage")
    return gc_record is not None and gc_record["populated"] is True


async def wait_until_refused(runtime: ControllerRuntime) -> None:
    async def is_refused() -> bool:
        plan = await runtime.garbage_plan()
        return bool(plan.refused) and len(plan.orphans) == 2

    await eventually(is_refused)


async def test_a_secondary_too_large_for_its_bucket_fails_only_its_owner(
    nats_server: NatsServer,
) -> None:
    class Small(Apps):
        apps = primary(kv(App, bucket="apps"))
        parts = secondary(kv(Part, bucket="small", max_value_bytes=1000))

    async with plain(nats_server) as js, running(nats_server, Small()) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("small")
        await put(apps, "large", app("x" * 2000))
        await put(apps, "shop", app())
        await becomes(parts, "shop.main")
        await eventually(lambda: "TooLargeError" in runtime.status().failing.get("large", ""))


async def test_results_of_syncs_are_recorded_as_events(nats_server: NatsServer) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, Apps()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            await put(parts, "taken.main", {"spec": {"text": "theirs"}})
            await put(apps, "taken", app())
            await put(apps, "shop", app())
            await becomes(parts, "shop.main", "taken.main")
            await eventually(lambda: has_events(js, "shop", "taken"))
        messages = {
            subject.rpartition(".")[2]: json.loads(
                (await js.get_last_msg("natsctl_events", subject)).data or b"{}"
            )
            for subject in await subjects(js)
        }
    assert messages["shop"]["reason"] == "Synced"
    assert messages["taken"]["reason"] == "ErrResourceExists"
    assert "is not managed by this controller" in messages["taken"]["message"]


async def has_events(js: JetStreamContext, *expected: str) -> bool:
    """Return whether events about these keys are recorded."""
    try:
        recorded = {subject.rpartition(".")[2] for subject in await subjects(js)}
    except NotFoundError:
        return False
    return recorded >= set(expected)


async def subjects(js: JetStreamContext) -> list[str]:
    info = await js.stream_info("natsctl_events", subjects_filter=">")
    return sorted(info.state.subjects or {})


async def test_a_rollout_continues_when_the_agents_of_the_sites_report(
    nats_server: NatsServer,
) -> None:
    controller = Rollouts()
    async with plain(nats_server) as js, running(nats_server, controller):
        sites, rollouts = await js.key_value("sites"), await js.key_value("rollouts")
        configs = await js.key_value("site-configs")
        for site in ("athens", "berlin", "calais"):
            await put(sites, site, {"metadata": {"labels": {"region": "eu"}}, "spec": {}})
        spec = {"sites": {"region": "eu"}, "config": {"version": "1"}, "atOnce": 1}
        await eventually(lambda: len(controller.sites.keys()) == 3)
        await put(rollouts, "eu", {"spec": spec})
        reached: list[str] = []
        for site in ("athens", "berlin", "calais"):
            reached.append(site)
            await becomes(configs, *reached)
            config = await get(configs, site)
            assert config is not None
            generation = config["metadata"]["generation"]
            await put(
                configs,
                site,
                {**config, "status": {"observedGeneration": generation, "ready": True}},
            )

        async def is_done() -> bool:
            rollout = await get(rollouts, "eu")
            return rollout is not None and rollout.get("status", {}).get("ready") == 3

        await eventually(is_done)


async def test_connect_raises_without_a_reachable_server() -> None:
    with pytest.raises(ConnectError):
        async with connect("nats://127.0.0.1:1"):
            pass
