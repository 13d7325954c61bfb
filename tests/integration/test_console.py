"""The console answers what daemons and buckets have, and carries out actions."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controllers.greetings import Greetings
from natsctl import Controller, Object, Plan, kv, primary
from natsctl.jetstream.bucket import Bucket
from natsctl.model.plans import PlanSummary
from natsctl.telemetry.hiding import MASK
from tests.support.clients.console_client import ConsoleClient, console_on
from tests.support.clients.daemons import daemon_on
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

GREETING = b'{"spec": {"text": "hi"}}'


class Failing(Controller):
    """Fails for every key."""

    shops = primary(kv(Object, bucket="shops"))

    async def sync_handler(self, key: str) -> None:
        raise ValueError(f"no {key} <script>alert(1)</script>")


@pytest.fixture
async def client(nats_server: NatsServer, nats: Nats) -> AsyncIterator[ConsoleClient]:
    """A console beside a daemon that runs greetings; the key `shop` is synced."""
    async with daemon_on(nats, Greetings()), console_on(nats_server.url) as client:
        await put(nats, "greetings", "shop")

        async def is_ready() -> bool:
            view = await client.get("key", controller="greetings", key="shop")
            tree = view.body.get("tree") or {}
            return bool(tree.get("ready") == "True")

        await eventually(is_ready)
        yield client


async def put(nats: Nats, bucket: str, key: str, value: bytes = GREETING) -> None:
    await nats.connection.request(f"$KV.{bucket}.{key}", value)


async def test_a_controller_and_the_objects_of_its_keys_are_shown(
    client: ConsoleClient, nats: Nats
) -> None:
    home = await client.read("home")
    (row,) = home["controllers"]
    assert (row["name"], row["state"], row["mode"]) == ("greetings", "syncing", "alone")
    assert [(place["bucket"], place["keys"]) for place in row["sources"]] == [("greetings", ">")]
    assert (row["keys"], row["failing"]) == (1, 0)
    assert (row["syncs"] >= 1, row["failures"]) == (True, 0)
    assert (home["partial"], home["no_daemon"], home["need"]) == (None, False, [])

    async def queued() -> Any:
        (row,) = (await client.read("home"))["controllers"]
        return row["queued"]

    await eventually(lambda: _is(queued, 0))
    query = {"controller": "greetings", "kind": "Route.routes"}
    view = await client.read("key", controller="greetings", key="shop")
    key = view["tree"]["branches"][0]["key"]
    route = json.loads((await client.read("manifest", **query, key=key))["text"])
    assert route["metadata"]["labels"]["natsctl.io/owner-key"] == "shop"
    route["spec"]["password"] = "one-secret"
    await put(nats, "routes", key, json.dumps(route).encode())

    async def shown() -> Any:
        text = (await client.read("manifest", **query, key=key))["text"]
        return json.loads(text)["spec"].get("password")

    assert await eventually(shown) == MASK
    reply = await client.get("manifest", **query, key="none")
    assert reply.problem == ("not_found", "greetings knows no Route.routes/none")
    reply = await client.get("diff", bucket="greetings", key="shop", **{"from": 900})
    assert reply.problem[0] == "not_found"  # the revision isn't kept
    reply = await client.get("keys", controller="greeting")
    unknown = "no controller greeting exists; did you mean greetings?"
    assert reply.problem == ("not_found", unknown)
    reply = await client.act("pause", controller="greetings", keys=["a b"])
    assert (reply.status, reply.problem[0]) == (400, "invalid")


async def test_garbage_is_deleted_only_as_it_was_shown(client: ConsoleClient, nats: Nats) -> None:
    label = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "gone"}
    metadata = {"labels": label, "annotations": label}
    value = {"metadata": metadata, "spec": {"subject": "a", "payload": "b"}}
    await put(nats, "routes", "gone", json.dumps(value).encode())

    async def planned() -> Any:
        return (await client.read("garbage", controller="greetings"))["orphans"]

    (found,) = await eventually(planned)
    orphan = {field: found[field] for field in ("kind", "key", "revision")}
    reply = await client.act("garbage", controller="greetings", objects=[orphan], count=2)
    assert reply.problem == ("invalid", "1 objects are chosen, and 2 was typed")
    stale = {**orphan, "revision": orphan["revision"] + 1}
    reply = await client.act("garbage", controller="greetings", objects=[stale], count=1)
    assert (reply.status, reply.problem[0]) == (409, "conflict")
    assert len(await planned()) == 1


async def test_an_edit_keeps_the_secrets_that_a_draft_masks(
    client: ConsoleClient, nats: Nats
) -> None:
    spec = {"text": "hi", "password": "one-secret"}
    value = {"spec": spec, "status": {"ready": True}}
    await put(nats, "routes", "a", json.dumps(value).encode())
    draft = await client.read("draft", bucket="routes", key="a")

    async def stored() -> Any:
        return json.loads((await Bucket(nats.connection, "routes").last("a")).value)

    document = json.loads(draft["text"])
    assert document == {"spec": {"text": "hi", "password": MASK}}
    edit = {"bucket": "routes", "keys": ["a"], "revision": draft["revision"]}
    moved = json.dumps({"spec": {"text": MASK, "password": MASK}})
    reply = await client.act("edit", **edit, text=moved, sure=True)
    assert reply.problem[0] == "invalid"
    assert "spec.text has ***" in reply.problem[1]
    document["spec"]["text"] = "ho"
    edit["text"] = json.dumps(document)
    shown = await client.act("edit", **edit)
    assert shown.body["result"]["differences"] == [
        {"path": "spec.text", "before": "hi", "after": "ho"}
    ]
    assert (await stored())["spec"]["text"] == "hi"
    await client.act("edit", **edit, sure=True)
    assert (await stored())["spec"] == {"text": "ho", "password": "one-secret"}
    assert (await stored())["status"] == {"ready": True}
    late = await client.act("edit", **edit, sure=True)
    assert (late.status, late.problem[0]) == (409, "conflict")


async def test_failing_keys_are_grouped_by_cause(nats_server: NatsServer, nats: Nats) -> None:
    async with daemon_on(nats, Failing()), console_on(nats_server.url) as client:
        for key in ("a", "b"):
            await put(nats, "shops", key)

        async def causes() -> Any:
            (cause,) = (await client.read("home"))["causes"]
            assert cause["count"] == 2
            return cause

        cause = await eventually(causes)
        assert (cause["controller"], cause["state"]) == ("failing", "failing")
        assert cause["message"] == "ValueError: no … <script>alert(…)</script>"
        assert cause["keys"] == ["a", "b"]
        assert cause["since"]
        assert (await client.read("home"))["need"] == ["failing"]
        query = {"state": "failing", "cause": cause["message"], "prefix": "b"}
        table = await client.read("keys", controller="failing", **query)
        (row,) = table["rows"]
        reason = "ValueError: no b <script>alert(1)</script>"
        assert (row["key"], row["state"], row["reason"]) == ("b", "failing", reason)
        assert (table["total"], table["states"]["failing"]) == (1, 2)

        async def text() -> Any:
            reply = await client.get("recording", controller="failing", key="a")
            return json.loads(reply.body.get("text", "{}")).get("outcome", {}).get("traceback")

        assert "in Failing.sync_handler" in await eventually(text)
        reply = await client.get("garbage", controller="failing")
        without = "controller failing makes no secondaries: it has no garbage"
        assert reply.problem == ("invalid", without)


@pytest.fixture
async def alone(nats_server: NatsServer, nats: Nats) -> AsyncIterator[ConsoleClient]:
    """A console without a daemon; there is a bucket `shops`."""
    await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
    async with console_on(nats_server.url) as client:
        yield client


async def test_a_controller_that_the_console_has_is_planned_by_the_console(
    nats_server: NatsServer,
) -> None:
    planned_keys: list[list[str]] = []

    async def plan(keys: Any) -> Plan:
        planned_keys.append(list(keys))
        return Plan(controller="shops", summary=PlanSummary(create=2), keys={})

    async with console_on(nats_server.url, planners={"shops": plan}) as client:
        reply = await client.act("plan", controller="shops", keys=["a"])
        assert reply.body["result"]["summary"]["create"] == 2
        assert planned_keys == [["a"]]


async def test_secrets_are_masked_in_objects_differences_and_tables(
    alone: ConsoleClient, nats: Nats
) -> None:
    for password in ("one-secret", "two-secret"):
        spec = {"password": password, "note": f"see {password}"}
        await put(nats, "shops", "a", json.dumps({"spec": spec}).encode())
    view = await alone.read("key", bucket="shops", key="a")
    difference = await alone.read("diff", bucket="shops", key="a")
    assert json.loads(view["object"]["text"])["spec"]["password"] == MASK
    assert "secret" not in json.dumps(view)
    assert "-secret" not in json.dumps(difference)
    paths = [change["path"] for change in difference["differences"]]
    assert paths == ["spec.password", "spec.note"]
    await put(nats, "shops", "a", b'{"password": "one-secret"}')
    await put(nats, "shops", "b", b"nats://ann:one-secret@desk")
    rows = (await alone.read("keys", bucket="shops"))["rows"]
    values = [row["cells"][-1] for row in rows]
    assert values == ['{ "password": "***" }', "nats://***@desk"]


async def test_a_page_of_large_values_is_small(alone: ConsoleClient, nats: Nats) -> None:
    for number in range(8):
        value = {"metadata": {"generation": 3}, "spec": {"text": "x" * 900_000}}
        await put(nats, "shops", f"key-{number}", json.dumps(value).encode())
    table = await alone.read("keys", bucket="shops")
    assert len(json.dumps(table)) < 10_000
    generations = [row["cells"][2] for row in table["rows"]]
    assert generations == ["3"] * 4 + ["-"] * 4
    assert "large" in table["note"]


async def test_any_value_can_be_shown_until_the_bucket_is_deleted(
    alone: ConsoleClient, nats: Nats
) -> None:
    values = {b"\xff\xfe": "binary", b"[" * 5000 + b"]" * 5000: "text", b"12": "text"}
    for value, kind in values.items():
        for content in (b"{}", value):
            await put(nats, "shops", "a", content)
        view = await alone.read("key", bucket="shops", key="a")
        assert view["object"]["kind"] == kind
        assert (await alone.get("diff", bucket="shops", key="a")).status in (200, 503)
        assert (await alone.read("keys", bucket="shops"))["total"] == 1
    invalid: list[dict[str, str | int]] = [{"limit": 0}, {"limit": 201}, {"offset": -1}]
    invalid += [{"state": "failing"}, {"prefix": "x" * 501}]
    for query in invalid:
        reply = await alone.get("keys", bucket="shops", **query)
        assert (reply.status, reply.problem[0]) == (400, "invalid")
    await nats.connection.api("STREAM.DELETE.KV_shops")

    async def reason() -> Any:
        reply = await alone.get("keys", bucket="shops")
        return reply.body.get("error", {}).get("reason")

    await eventually(lambda: _is(reason, "not_found"))


async def fill(nats: Nats, count: int) -> None:
    """Create the bucket `many` with the keys `key-00000` and so on."""
    await Bucket(nats.connection, "many").ensure(kv(bytes, bucket="many"))
    for number in range(count):
        last = number == count - 1  # its acknowledgement follows the others in the stream
        send = nats.connection.request if last else nats.connection.client.publish
        await send(f"$KV.many.key-{number:05}", b'{"spec": {"n": 1}}')


class Metered(CutProxy):
    """A proxy that forwards no data after `left` bytes from the server, if that is not None."""

    left: int | None = None

    def changed_data(self, data: bytes) -> bytes:
        if self.left is not None:
            self.left -= len(data)
            if self.left < 0:
                self.freeze()
        return data

    async def is_spent(self) -> bool:
        return self.left is not None and self.left < 0


async def test_the_first_rows_of_many_keys_do_not_wait_for_all_names(
    nats_server: NatsServer, nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page without a change reads no names again."""
    monkeypatch.setattr("natsctl.console.keys.AT_ONCE_MAX", 1_000)
    monkeypatch.setattr("natsctl.console.keys.REST_MIN_S", 0.0)
    monkeypatch.setattr("natsctl.console.keys.REST_FACTOR", 0.0)
    await fill(nats, 4_000)
    async with Metered(nats_server.url) as proxy, console_on(proxy.url) as client:
        async with client.live(view="keys", bucket="many") as live:
            await live.next("state", connected=True)
            proxy.left = 70_000  # the names alone have 80,000 bytes, a hundred values 40,000
            first = await client.read("keys", bucket="many")
            assert [row["key"] for row in first["rows"][:2]] == ["key-03999", "key-03998"]
            assert (len(first["rows"]), first["next"]) == (100, None)
            assert "the names of 4,000 keys" in first["note"]
            await eventually(lambda: _is(proxy.is_spent, expected=True))
            proxy.left = None
            proxy.thaw()
            await live.next("changed")
        page = await client.read("keys", bucket="many")
        assert [row["key"] for row in page["rows"][:2]] == ["key-00000", "key-00001"]
        assert (page["total"], page["next"], page["note"]) == (4_000, 100, "")
        proxy.left = 70_000
        page = await client.read("keys", bucket="many", offset=1_000)
        assert (page["rows"][0]["key"], page["total"]) == ("key-01000", 4_000)


async def _is(read: Any, expected: object) -> bool:
    return bool(await read() == expected)
