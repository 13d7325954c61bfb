"""The console answers what daemons and buckets have, and carries out actions."""

import asyncio
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
from tests.support.clients.nats import Nats
from tests.support.controllers.daemon import daemon_on
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


class TestReads:
    async def test_home_has_a_row_per_controller(self, client: ConsoleClient) -> None:
        home = await client.read("home")
        (row,) = home["controllers"]
        assert (row["name"], row["state"], row["mode"]) == ("greetings", "syncing", "alone")
        assert [(place["bucket"], place["keys"]) for place in row["sources"]] == [
            ("greetings", ">")
        ]
        assert (row["keys"], row["failing"]) == (1, 0)
        assert (row["syncs"] >= 1, row["failures"]) == (True, 0)
        assert (home["partial"], home["no_daemon"], home["need"]) == (None, False, [])

        async def queued() -> Any:
            (row,) = (await client.read("home"))["controllers"]
            return row["queued"]

        await eventually(lambda: _is(queued, 0))

    async def test_an_object_of_the_tree_is_shown_without_secrets(
        self, client: ConsoleClient, nats: Nats
    ) -> None:
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

    async def test_a_revision_that_is_not_kept_is_not_found(self, client: ConsoleClient) -> None:
        reply = await client.get("diff", bucket="greetings", key="shop", **{"from": 900})
        assert reply.problem[0] == "not_found"

    async def test_an_unknown_controller_is_not_found(self, client: ConsoleClient) -> None:
        reply = await client.get("keys", controller="greeting")
        assert reply.problem == (
            "not_found",
            "no controller greeting exists; did you mean greetings?",
        )


class TestActions:
    async def test_a_controller_that_the_console_has_is_planned_by_the_console(
        self, nats_server: NatsServer
    ) -> None:
        planned_keys: list[list[str]] = []

        async def plan(keys: Any) -> Plan:
            planned_keys.append(list(keys))
            return Plan(controller="shops", summary=PlanSummary(create=2), keys={})

        async with console_on(nats_server.url, planners={"shops": plan}) as client:
            reply = await client.act("plan", controller="shops", keys=["a"])
            assert reply.body["result"]["summary"]["create"] == 2
            assert planned_keys == [["a"]]

    async def test_an_action_with_an_illegal_key_changes_nothing(
        self, client: ConsoleClient
    ) -> None:
        reply = await client.act("pause", controller="greetings", keys=["a b"])
        assert (reply.status, reply.problem[0]) == (400, "invalid")


class TestGarbage:
    @pytest.fixture
    async def orphan(self, client: ConsoleClient, nats: Nats) -> dict[str, Any]:
        """A route whose owner never existed."""
        label = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "gone"}
        metadata = {"labels": label, "annotations": label}
        value = {"metadata": metadata, "spec": {"subject": "a", "payload": "b"}}
        await put(nats, "routes", "gone", json.dumps(value).encode())

        async def planned() -> Any:
            return (await client.read("garbage", controller="greetings"))["orphans"]

        (orphan,) = await eventually(planned)
        return {field: orphan[field] for field in ("kind", "key", "revision")}

    async def test_a_wrong_count_deletes_nothing(
        self, client: ConsoleClient, orphan: dict[str, Any]
    ) -> None:
        reply = await client.act("garbage", controller="greetings", objects=[orphan], count=2)
        assert reply.problem == ("invalid", "1 objects are chosen, and 2 was typed")
        assert len((await client.read("garbage", controller="greetings"))["orphans"]) == 1

    async def test_an_object_that_changed_is_not_deleted(
        self, client: ConsoleClient, orphan: dict[str, Any]
    ) -> None:
        stale = {**orphan, "revision": orphan["revision"] + 1}
        reply = await client.act("garbage", controller="greetings", objects=[stale], count=1)
        assert (reply.status, reply.problem[0]) == (409, "conflict")

    async def test_a_controller_without_secondaries_has_no_garbage(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        async with daemon_on(nats, Failing()), console_on(nats_server.url) as client:
            reply = await client.get("garbage", controller="failing")
            assert reply.problem == (
                "invalid",
                "controller failing makes no secondaries: it has no garbage",
            )


class TestFailures:
    async def test_failing_keys_are_grouped_by_cause(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
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

    async def test_the_traceback_of_a_failed_sync_is_shown(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        async with daemon_on(nats, Failing()), console_on(nats_server.url) as client:
            await put(nats, "shops", "a")

            async def text() -> Any:
                reply = await client.get("recording", controller="failing", key="a")
                return json.loads(reply.body.get("text", "{}")).get("outcome", {}).get("traceback")

            assert "in Failing.sync_handler" in await eventually(text)


class TestEdits:
    @pytest.fixture
    async def secret(self, client: ConsoleClient, nats: Nats) -> dict[str, Any]:
        """The draft of an object with a secret."""
        spec = {"text": "hi", "password": "one-secret"}
        value = {"spec": spec, "status": {"ready": True}}
        await put(nats, "routes", "a", json.dumps(value).encode())
        draft: dict[str, Any] = await client.read("draft", bucket="routes", key="a")
        return draft

    async def stored(self, nats: Nats) -> Any:
        return json.loads((await Bucket(nats.connection, "routes").last("a")).value)

    async def test_a_draft_has_no_secret_and_a_masked_one_is_kept(
        self, client: ConsoleClient, nats: Nats, secret: dict[str, Any]
    ) -> None:
        document = json.loads(secret["text"])
        assert document == {"spec": {"text": "hi", "password": MASK}}
        document["spec"]["text"] = "ho"
        edit = {"bucket": "routes", "keys": ["a"], "text": json.dumps(document)}
        edit["revision"] = secret["revision"]
        shown = await client.act("edit", **edit)
        assert shown.body["result"]["differences"] == [
            {"path": "spec.text", "before": "hi", "after": "ho"}
        ]
        assert (await self.stored(nats))["spec"]["text"] == "hi"
        await client.act("edit", **edit, sure=True)
        stored = await self.stored(nats)
        assert stored["spec"] == {"text": "ho", "password": "one-secret"}
        assert stored["status"] == {"ready": True}
        late = await client.act("edit", **edit, sure=True)
        assert (late.status, late.problem[0]) == (409, "conflict")

    async def test_a_moved_mask_is_refused(
        self, client: ConsoleClient, secret: dict[str, Any]
    ) -> None:
        text = json.dumps({"spec": {"text": MASK, "password": MASK}})
        edit = {"bucket": "routes", "keys": ["a"], "text": text, "revision": secret["revision"]}
        reply = await client.act("edit", **edit, sure=True)
        assert reply.problem[0] == "invalid"
        assert "spec.text has ***" in reply.problem[1]


class TestValues:
    async def test_secrets_are_masked_in_objects_and_differences(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        async with console_on(nats_server.url) as client:
            await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
            for password in ("one-secret", "two-secret"):
                spec = {"password": password, "note": f"see {password}"}
                await put(nats, "shops", "a", json.dumps({"spec": spec}).encode())
            view = await client.read("key", bucket="shops", key="a")
            difference = await client.read("diff", bucket="shops", key="a")
            assert json.loads(view["object"]["text"])["spec"]["password"] == MASK
            assert "secret" not in json.dumps(view)
            assert "-secret" not in json.dumps(difference)
            assert [change["path"] for change in difference["differences"]] == [
                "spec.password",
                "spec.note",
            ]

    async def test_secrets_are_masked_in_tables(self, nats_server: NatsServer, nats: Nats) -> None:
        async with console_on(nats_server.url) as client:
            await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
            await put(nats, "shops", "a", b'{"password": "one-secret"}')
            await put(nats, "shops", "b", b"nats://ann:one-secret@desk")
            rows = (await client.read("keys", bucket="shops"))["rows"]
            values = [row["cells"][-1] for row in rows]
            assert values == ['{ "password": "***" }', "nats://***@desk"]

    async def test_a_page_of_large_values_is_small(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        async with console_on(nats_server.url) as client:
            await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
            for number in range(8):
                value = {"metadata": {"generation": 3}, "spec": {"text": "x" * 900_000}}
                await put(nats, "shops", f"key-{number}", json.dumps(value).encode())
            table = await client.read("keys", bucket="shops")
            assert len(json.dumps(table)) < 10_000
            generations = [row["cells"][2] for row in table["rows"]]
            assert generations == ["3"] * 4 + ["-"] * 4
            assert "large" in table["note"]

    @pytest.mark.parametrize(
        ("value", "kind"),
        [(b"\xff\xfe", "binary"), (b"[" * 5000 + b"]" * 5000, "text"), (b"12", "text")],
        ids=["bytes", "deep", "number"],
    )
    async def test_any_value_can_be_shown(
        self, nats_server: NatsServer, nats: Nats, value: bytes, kind: str
    ) -> None:
        async with console_on(nats_server.url) as client:
            await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
            for content in (b"{}", value):
                await put(nats, "shops", "a", content)
            view = await client.read("key", bucket="shops", key="a")
            assert view["object"]["kind"] == kind
            assert (await client.get("diff", bucket="shops", key="a")).status in (200, 503)
            assert (await client.read("keys", bucket="shops"))["total"] == 1


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


class TestTables:
    """Tables of a bucket with many keys."""

    COUNT = 6_000

    @pytest.fixture
    async def many(self, nats_server: NatsServer, nats: Nats) -> AsyncIterator[ConsoleClient]:
        await fill(nats, self.COUNT)
        async with console_on(nats_server.url) as console:
            yield console

    async def test_the_first_rows_of_many_keys_do_not_wait_for_all_names(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        await fill(nats, 12_000)
        async with Metered(nats_server.url) as proxy, console_on(proxy.url) as client:
            async with client.live(view="keys", bucket="many") as live:
                await live.next("state", connected=True)
                proxy.left = 150_000  # the names alone have 240,000 bytes, a hundred values 40,000
                first = await client.read("keys", bucket="many")
                assert [row["key"] for row in first["rows"][:2]] == ["key-11999", "key-11998"]
                assert (len(first["rows"]), first["next"]) == (100, None)
                assert "the names of 12,000 keys" in first["note"]
                await eventually(lambda: _is(proxy.is_spent, expected=True))
                proxy.left = None
                proxy.thaw()
                await live.next("changed")
            page = await client.read("keys", bucket="many")
            assert [row["key"] for row in page["rows"][:2]] == ["key-00000", "key-00001"]
            assert (page["total"], page["next"], page["note"]) == (12_000, 100, "")

    async def test_a_page_without_a_change_reads_no_names(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        await fill(nats, 3_000)
        async with Metered(nats_server.url) as proxy, console_on(proxy.url) as client:
            await client.read("keys", bucket="many")
            await asyncio.sleep(1)  # names are not looked at for a while after they were read
            proxy.left = 50_000  # the names have 60,000 bytes
            page = await client.read("keys", bucket="many", offset=1_000)
            assert (page["rows"][0]["key"], page["total"]) == ("key-01000", 3_000)

    @pytest.mark.parametrize(
        "query",
        [{"limit": 0}, {"limit": 201}, {"offset": -1}, {"state": "failing"}, {"prefix": "x" * 501}],
    )
    async def test_an_invalid_query_is_explained(
        self, nats_server: NatsServer, nats: Nats, query: dict[str, str | int]
    ) -> None:
        async with console_on(nats_server.url) as client:
            await Bucket(nats.connection, "many").ensure(kv(bytes, bucket="many"))
            reply = await client.get("keys", bucket="many", **query)
            assert (reply.status, reply.problem[0]) == (400, "invalid")


class TestBuckets:
    async def test_a_bucket_that_is_deleted_is_not_found(
        self, nats_server: NatsServer, nats: Nats
    ) -> None:
        await Bucket(nats.connection, "shops").ensure(kv(bytes, bucket="shops"))
        async with console_on(nats_server.url) as client:
            await client.read("keys", bucket="shops")
            await nats.connection.api("STREAM.DELETE.KV_shops")

            async def reason() -> Any:
                reply = await client.get("keys", bucket="shops")
                return reply.body.get("error", {}).get("reason")

            await eventually(lambda: _is(reason, "not_found"))


async def _is(read: Any, expected: object) -> bool:
    return bool(await read() == expected)
