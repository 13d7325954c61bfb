"""A `HookController` on a real nats-server; its service knows nothing but NATS."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError

from natsctl import ControllerRuntime, HookController, connect, kv, primary, secondary, untyped
from tests.support.clients.bucket_keys import keys as bucket_keys
from tests.support.clients.plain_client import plain_client
from tests.support.clients.span_recorder import recording
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

Request = dict[str, Any]
Answer = Callable[[Request], Any]


class Shops(HookController):
    """Asks `shops.sync`."""

    hook = "shops.sync"
    hook_timeout_s = 5.0
    hook_reads = (kv(dict, bucket="profiles"),)
    shops = primary(untyped("shops"))
    pages = secondary(untyped("pages"))
    signs = secondary(untyped("signs"))


def pages(request: Request) -> Request:
    """Return as many pages as the shop wants copies."""
    spec = request["object"]["spec"]
    names = [f"{request['key']}.{number}" for number in range(spec["copies"])]
    text = {"text": spec.get("text", "hi").upper()}
    return {
        "children": {"pages": {name: {"spec": text} for name in names}},
        "status": {"ready": True},
    }


class Site:
    """A running controller, and the service that it asks."""

    def __init__(self, client: Client, runtime: ControllerRuntime) -> None:
        self.answer: Answer = pages
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.runtime = runtime
        self._client, self._js = client, client.jetstream()

    async def serve(self) -> None:
        await self._client.subscribe("shops.sync", queue="shops", cb=self._answer)

    async def put(self, bucket: str, key: str, spec: Request) -> None:
        entries = await self._js.key_value(bucket)
        await entries.put(key, json.dumps({"spec": spec}).encode())

    async def delete(self, bucket: str, key: str) -> None:
        await (await self._js.key_value(bucket)).delete(key)

    async def get(self, bucket: str, key: str) -> Request | None:
        try:
            entry = await (await self._js.key_value(bucket)).get(key)
        except KeyNotFoundError:
            return None
        document: Request = json.loads(entry.value or b"{}")
        return document

    async def has(self, bucket: str, *keys: str) -> bool:
        return await bucket_keys(await self._js.key_value(bucket)) == list(keys)

    def failure(self, key: str) -> str:
        syncs = self.runtime.explain(key).syncs
        return syncs[-1].error if syncs else ""

    def fails(self, key: str, message: str) -> bool:
        return message in self.failure(key)

    async def _answer(self, msg: Msg) -> None:
        request = json.loads(msg.data)
        self.requests.append(request)
        self.headers.append(msg.headers or {})
        answer = self.answer(request)
        if answer is not None:
            await msg.respond(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


@asynccontextmanager
async def running(server: NatsServer, controller: HookController) -> AsyncIterator[Site]:
    async with connect(server.url) as stores, plain_client(server.url) as client:
        runtime = ControllerRuntime(controller, nats=stores)
        task = asyncio.create_task(runtime.run())
        await eventually(lambda: task.done() or runtime.synced.is_set())
        try:
            yield Site(client, runtime)
        finally:
            runtime.stop()
            await task


@pytest.fixture
async def site(nats_server: NatsServer) -> AsyncIterator[Site]:
    async with running(nats_server, Shops()) as site:
        await site.serve()
        yield site


async def test_children_are_made_changed_and_deleted_as_the_service_decides(site: Site) -> None:
    await site.put("shops", "a", {"copies": 3})
    await eventually(lambda: site.has("pages", "a.0", "a.1", "a.2"))
    first = site.requests[0]
    assert {**first, "object": first["object"]["spec"]} == {
        "version": 1,
        "controller": "shops",
        "key": "a",
        "reason": "put",
        "finalizing": False,
        "object": {"copies": 3},
        "children": {"pages": {}, "signs": {}},
        "reads": {},
    }
    await site.put("shops", "a", {"copies": 1, "text": "bye"})
    await eventually(lambda: site.has("pages", "a.0"))

    async def changed() -> bool:
        return ((await site.get("pages", "a.0")) or {})["spec"] == {"text": "BYE"}

    await eventually(changed)
    assert set(site.requests[-1]["children"]["pages"]) <= {"a.0", "a.1", "a.2"}
    await site.delete("shops", "a")
    await eventually(lambda: site.has("pages"))
    site.answer = lambda request: {
        "children": {slot: {request["key"]: {"spec": {}}} for slot in ("pages", "signs")}
    }
    await site.put("shops", "a", {})
    await eventually(lambda: site.has("signs", "a"))
    site.answer = lambda _: {"children": {"pages": {}}}
    await site.put("shops", "a", {"other": 1})
    await eventually(lambda: site.has("pages"))
    assert await site.has("signs", "a")  # a slot that the answer doesn't name stays


async def test_an_object_that_the_hook_reads_syncs_the_key_when_it_changes(site: Site) -> None:
    def answer(request: Request) -> Request:
        profile = request["reads"].get("profiles/gold")
        colour = profile["spec"]["colour"] if profile else "none"
        children = {"pages": {request["key"]: {"spec": {"colour": colour}}}}
        return {"children": children, "reads": ["profiles/gold"]}

    async def colour() -> str:
        page = await site.get("pages", "a")
        return page["spec"]["colour"] if page else ""

    async def becomes(wanted: str) -> None:
        async def is_wanted() -> bool:
            return await colour() == wanted

        await eventually(is_wanted)

    site.answer = answer
    await site.put("shops", "a", {})
    await becomes("none")
    await site.put("profiles", "gold", {"colour": "yellow"})
    await becomes("yellow")
    asked = len(site.requests)
    await site.put("profiles", "gold", {"colour": "red"})
    await becomes("red")
    assert len(site.requests) == asked + 1  # it's asked at once with what it read before


WRONG: list[tuple[Any, str]] = [
    ({"error": "no such profile"}, "hook shops.sync: no such profile"),
    (b"{", "not a valid answer: Expecting property name"),
    (b'{"status": {"a": NaN}}', "not a valid answer: NaN isn't a number in JSON"),
    (b"\xff", "not a valid answer"),
    ([], "not a valid answer: Expected `object`, got `array`"),
    ({"child": {}}, "not a valid answer: Object contains unknown field `child`"),
    ({"requeueAfter": -1}, "requeueAfter: -1.0 isn't seconds"),
    ({"version": 2}, "version 2 of answers is unknown"),
    ({"children": {"walls": {}}}, "children of 'walls', which isn't declared; declared are pages"),
    (b'{"children": {"pages": {"a": {}, "a": {}}}}', "'a' occurs twice in one object"),
    ({"children": {"pages": {"a": {"spec": 1}}}}, "pages 'a': Expected `object`, got `int`"),
    ({"children": {"pages": {"a..b": {"spec": {}}}}}, "hook shops.sync: pages 'a..b': key 'a..b'"),
    ({"children": {"pages": {"a": {"metadata": {"name": "b"}}}}}, "pages 'a' is named 'b'"),
    ({"children": {"pages": {"taken": {"spec": {}}}}}, "taken"),
    ({"reads": ["secrets/a"]}, "reads 'secrets/a', and may read profiles"),
]


async def test_a_wrong_answer_fails_its_key_alone_and_is_retried(site: Site) -> None:
    bad = {f"bad-{number}": answer for number, (answer, _) in enumerate(WRONG)}
    await site.put("pages", "taken", {})
    site.answer = lambda request: bad.get(request["key"], pages(request))
    for key in (*bad, "good"):
        await site.put("shops", key, {"copies": 1})
    for key, (_, message) in zip(bad, WRONG, strict=True):
        await eventually(partial(site.fails, key, message))
    await eventually(lambda: site.has("pages", "good.0", "taken"))
    site.answer = pages
    made = sorted(f"{key}.0" for key in bad)
    await eventually(lambda: site.has("pages", *made, "good.0", "taken"))


async def test_a_service_that_is_not_there_is_awaited(nats_server: NatsServer) -> None:
    """Then it refuses, as micro services do. The spans of its answer join the sync."""
    with recording() as recorded:
        async with running(nats_server, Shops()) as site:
            await site.put("shops", "a", {"copies": 1})
            absent = "hook shops.sync: nobody listens on shops.sync"
            await eventually(lambda: absent in site.failure("a"))
            async with plain_client(nats_server.url) as client:

                async def refuse(msg: Msg) -> None:
                    headers = {
                        "Nats-Service-Error": "out of paper",
                        "Nats-Service-Error-Code": "507",
                    }
                    await client.publish(msg.reply, b"", headers=headers)

                await client.subscribe("shops.sync", cb=refuse)
                await eventually(lambda: "hook shops.sync: out of paper" in site.failure("a"))
            await site.serve()
            await eventually(lambda: site.has("pages", "a.0"))
    _, trace, _, _ = site.headers[0]["traceparent"].split("-")
    spans = [span for span in recorded.spans if span.name.startswith("sync")]
    assert trace in {f"{span.context.trace_id:032x}" for span in spans if span.context}


class Hasty(Shops):
    """Waits only a moment for an answer."""

    name = "shops"
    hook_timeout_s = 0.2


async def test_an_answer_that_does_not_come_fails_the_key(nats_server: NatsServer) -> None:
    """As an answer above the limit of the server, which its client refuses to send."""
    async with running(nats_server, Hasty()) as site:
        site.answer = lambda _: {"children": {"pages": {"a": {"spec": {"text": "x" * 2_000_000}}}}}
        await site.serve()
        await site.put("shops", "a", {"copies": 1})
        await eventually(lambda: "no answer within 0.2 s" in site.failure("a"))
        assert "its answer is larger than max_payload" in site.failure("a")


class Finalized(Shops):
    """Asks the hook before a shop goes away."""

    name = "shops"
    hook_finalize = True


async def test_a_deleted_object_stays_until_the_hook_has_cleaned_up(
    nats_server: NatsServer,
) -> None:
    async with running(nats_server, Finalized()) as site:
        await site.serve()
        await site.put("shops", "a", {"copies": 1})
        await eventually(lambda: site.has("pages", "a.0"))
        site.answer = lambda request: {"error": "busy"} if request["finalizing"] else pages(request)
        await site.delete("shops", "a")
        await eventually(lambda: "hook shops.sync: busy" in site.failure("a"))
        last = site.requests[-1]
        assert (last["finalizing"], last["object"]["spec"]) == (True, {"copies": 1})
        assert await site.has("pages", "a.0")
        site.answer = lambda _: {}
        await eventually(lambda: site.has("pages"))
