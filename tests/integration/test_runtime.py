"""A controller on a real nats-server, with plain nats-py clients that write what they like."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import KeyNotFoundError, NoKeysError
from nats.js.kv import KeyValue

from controllers.greetings import Greetings
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
from tests.support.controllers.app_controller import App, Apps, Part, PartSpec
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer


@asynccontextmanager
async def running(server: NatsServer, controller: Controller) -> AsyncIterator[ControllerRuntime]:
    """Run the controller; afterwards nothing of it is left at the server."""
    async with connect(server.url, verify_s=1.0) as stores:
        runtime = ControllerRuntime(controller, nats=stores)
        task = asyncio.create_task(runtime.run())
        await eventually(lambda: task.done() or runtime.synced.is_set())
        try:
            yield runtime
        finally:
            runtime.stop()
            await task
    assert await consumers(server) == []


async def consumers(server: NatsServer) -> list[str]:
    """Return the consumers of ours that the server has."""
    async with plain(server) as js:
        streams = [info.config.name or "" for info in await js.streams_info()]
        found = [info.name for name in streams for info in await js.consumers_info(name)]
    return [name for name in found if name.startswith("natsctl")]


@asynccontextmanager
async def plain(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def put(bucket: KeyValue, key: str, document: dict[str, Any]) -> None:
    await bucket.put(key, json.dumps(document).encode())


async def get(bucket: KeyValue, key: str) -> dict[str, Any] | None:
    """Return the object, None where there is none."""
    try:
        document: dict[str, Any] = json.loads((await bucket.get(key)).value or b"")
    except (KeyNotFoundError, json.JSONDecodeError):
        return None
    return document


async def keys(bucket: KeyValue) -> list[str]:
    try:
        return sorted(await bucket.keys())
    except NoKeysError:
        return []


async def text(bucket: KeyValue, key: str) -> str | None:
    found = await get(bucket, key)
    return None if found is None else found["spec"]["text"]


async def becomes(bucket: KeyValue, *expected: str) -> None:
    """Wait until the bucket's keys are these."""

    async def is_there() -> bool:
        assert await keys(bucket) == sorted(expected)
        return True

    await eventually(is_there)


def app(words: str = "hi", *parts: str) -> dict[str, Any]:
    return {"spec": {"text": words, "parts": parts or ["main"]}}


async def test_a_greeting_becomes_a_route_that_comes_back_whatever_is_done_to_it(
    nats_server: NatsServer,
) -> None:
    async with running(nats_server, Greetings()), plain(nats_server) as js:
        greetings, routes = await js.key_value("greetings"), await js.key_value("routes")
        await put(greetings, "shop", {"spec": {"text": "hi"}, "more": "of another version"})

        async def is_right() -> bool:
            route = await get(routes, "shop")
            assert route is not None
            assert route["spec"] == {"subject": "hello.shop", "payload": "hi!"}
            assert route["metadata"]["labels"]["natsctl.io/owner-key"] == "shop"
            return True

        await eventually(is_right)

        async def is_ready() -> bool:
            greeting = await get(greetings, "shop")
            status, more = {"ready": True}, "of another version"
            return greeting == {"spec": {"text": "hi"}, "more": more, "status": status}

        await eventually(is_ready)

        await routes.delete("shop")
        await eventually(is_right)
        await routes.purge("shop")
        await eventually(is_right)
        for junk in (b"oops", b'{"spec": {"subject": "elsewhere", "payload": ""}}', b""):
            await routes.put("shop", junk)
            await eventually(is_right)

        await greetings.delete("shop")
        await becomes(routes)


async def test_many_converge_and_then_nothing_is_written_or_synced(nats_server: NatsServer) -> None:
    count = 1000
    controller = Apps()
    async with plain(nats_server) as js, running(nats_server, controller) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("parts")
        names = [f"team-{number % 7}.app-{number}" for number in range(count)]
        for name in names:
            await put(apps, name, app())

        async def at_rest() -> bool:
            assert len(await keys(parts)) == count
            return runtime.idle

        await eventually(at_rest)
        before = await revisions(js)
        syncs = list(controller.syncs)
        assert sorted(syncs) == sorted(names)  # each once
        await asyncio.sleep(3)
        assert await revisions(js) == before
        assert controller.syncs == syncs


async def revisions(js: JetStreamContext) -> dict[str, int]:
    """Return how far each bucket is; what came before is still being told to people."""
    names = {str(info.config.name): info.state.last_seq for info in await js.streams_info()}
    return {name: last for name, last in names.items() if name.startswith("KV_")}


async def test_what_was_deleted_while_nobody_ran_takes_its_secondaries_at_the_next_start(
    nats_server: NatsServer,
) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, Apps()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("deleted", "purged", "kept"):
                await put(apps, key, app())
            await becomes(parts, "deleted.main", "purged.main", "kept.main")
        await apps.delete("deleted")
        await apps.purge("purged")
        async with running(nats_server, Apps()):
            await becomes(parts, "kept.main")


class Builders(Apps):
    """Every app is something outside too."""

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


async def test_what_is_outside_is_cleaned_up_once_however_its_object_was_deleted(
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


class Sweeping(Apps):
    garbage = GarbageLimits(interval_s=0.1, grace_s=0.5)


def lost(owner: str) -> dict[str, Any]:
    names = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": owner}
    return {"metadata": {"labels": names}, "spec": {"text": "left"}}


async def test_an_orphan_goes_after_its_grace_and_what_is_alive_stays(
    nats_server: NatsServer,
) -> None:
    async with plain(nats_server) as js, running(nats_server, Sweeping()) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("parts")
        await put(apps, "shop", app())
        await becomes(parts, "shop.main")
        await put(parts, "lost", lost("nobody"))
        await put(parts, "foreign", {"spec": {"text": "of nobody"}})

        async def is_planned() -> bool:
            return [at.key for at in (await runtime.garbage_plan()).orphans] == ["lost"]

        await eventually(is_planned)
        await becomes(parts, "foreign", "shop.main")


@pytest.mark.parametrize("how", ["recreated", "recreated while nobody ran", "purged"])
async def test_a_bucket_that_lost_its_owners_condemns_nobody(
    nats_server: NatsServer, how: str
) -> None:
    everything = ["bar.main", "shop.main"]
    async with plain(nats_server) as js:
        async with running(nats_server, Sweeping()) as runtime:
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("bar", "shop"):
                await put(apps, key, app())
            await becomes(parts, *everything)
            await eventually(lambda: swept(js))
            if how == "recreated":
                await js.delete_key_value("apps")
                await js.create_key_value(bucket="apps", history=5)
            if how == "purged":
                await js.purge_stream("KV_apps")
            if how != "recreated while nobody ran":
                await refused_in_the_end(runtime)
            assert await keys(parts) == everything
        if how == "recreated while nobody ran":
            await js.delete_key_value("apps")
        async with running(nats_server, Sweeping()) as runtime:
            await refused_in_the_end(runtime)
            await asyncio.sleep(1.5)
            assert await keys(parts) == everything

            plan = await runtime.garbage_plan()
            assert [orphan.key for orphan in plan.orphans] == everything
            assert len((await runtime.garbage_apply(plan)).orphans) == 2
            assert await keys(parts) == []


async def swept(js: JetStreamContext) -> bool:
    """Say whether a sweep has seen owners."""
    remembered = await get(await js.key_value("natsctl"), "gc.sweeping")
    return remembered is not None and remembered["populated"] is True


async def refused_in_the_end(runtime: ControllerRuntime) -> None:
    async def is_refused() -> bool:
        plan = await runtime.garbage_plan()
        return bool(plan.refused) and len(plan.orphans) == 2

    await eventually(is_refused)


async def test_an_invalid_object_harms_only_itself_and_heals(nats_server: NatsServer) -> None:
    async with plain(nats_server) as js, running(nats_server, Apps()) as runtime:
        apps, parts = await js.key_value("apps"), await js.key_value("parts")
        await put(apps, "shop", app("good"))
        await becomes(parts, "shop.main")
        await apps.put("shop", b"oops")
        await put(apps, "bar", app())
        await becomes(parts, "bar.main", "shop.main")
        assert list(runtime.status().invalid) == ["shop"]
        await put(apps, "shop", app("better"))

        async def is_healed() -> bool:
            return await text(parts, "shop.main") == "better"

        await eventually(is_healed)


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


async def test_people_are_told_in_a_stream_of_events(nats_server: NatsServer) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, Apps()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            await put(parts, "taken.main", {"spec": {"text": "theirs"}})
            await put(apps, "taken", app())
            await put(apps, "shop", app())
            await becomes(parts, "shop.main", "taken.main")
        messages = {
            subject.rpartition(".")[2]: json.loads(
                (await js.get_last_msg("natsctl_events", subject)).data or b"{}"
            )
            for subject in await subjects(js)
        }
    assert messages["shop"]["reason"] == "Synced"
    assert messages["taken"]["reason"] == "ErrResourceExists"
    assert "is not managed by this controller" in messages["taken"]["message"]


async def subjects(js: JetStreamContext) -> list[str]:
    info = await js.stream_info("natsctl_events", subjects_filter=">")
    return sorted(info.state.subjects or {})


async def test_a_rollout_goes_on_when_the_agents_at_the_sites_report(
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
            return rollout is not None and rollout["status"]["ready"] == 3

        await eventually(is_done)


async def test_a_controller_without_a_server_it_can_reach_says_so() -> None:
    with pytest.raises(ConnectError):
        async with connect("nats://127.0.0.1:1"):
            pass
