"""The console reports faults of daemons, servers and permissions, and heals by itself."""

import asyncio
import json
import re
import resource
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout

from controllers.greetings import Greetings
from natsctl import NatsOptions, connect, kv
from natsctl.daemon.messages import NAME, Verb
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.events import events_of
from natsctl.jetstream.service import Endpoint, ServiceIdentity, serving
from tests.support.cli.console import console as console_command
from tests.support.cli.natsctl_command import ROOT, Natsctl
from tests.support.clients.console_client import ConsoleClient, console_on
from tests.support.clients.daemons import are_served, daemon_on
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

FILES = 400  # that a console may have open
OLD = {
    "controller": "shops",
    "state": "syncing",
    "primaries": 3,
    "invalid": {},
    "failing": {"a": "no disk"},
    "syncs": 7,
    "failures": 1,
    "watch_restarts": 0,
    "queue": None,
    "daemon": {"id": "old", "host": "desk", "pid": 7, "version": "0.0.9", "started": ""},
    "failing_count": 1,
    "mode": "alone",
}
"""The status that a daemon of an earlier version answers."""


@pytest.fixture
async def client(nats_server: NatsServer) -> AsyncIterator[ConsoleClient]:
    async with console_on(nats_server.url) as client:
        yield client


async def bucket(nats: Nats, name: str) -> None:
    await Bucket(nats.connection, name).ensure(kv(bytes, bucket=name))


@asynccontextmanager
async def fake_daemon(
    connection: Connection, id_: str, status: dict[str, Any], *verbs: Verb, number: int = 1
) -> AsyncIterator[None]:
    """Serve as a daemon that answers `status`, and an empty object for the other *verbs*.

    It is the daemon of that *number*.
    """

    async def answer_status(_: bytes) -> bytes:
        return json.dumps(status).encode()

    async def answer(_: bytes) -> bytes:
        return b"{}"

    identity = ServiceIdentity(
        name=NAME, version="0.0.9", description="", metadata={"host": "desk", "pid": "7"}, id=id_
    )
    async with serving(connection, identity) as service:
        service.offer(
            [
                Endpoint(
                    name=verb.replace(".", "-"),
                    subject=verb.subject("shops"),
                    handler=answer_status if verb is Verb.STATUS else answer,
                    metadata={"controller": "shops", "verb": verb},
                )
                for verb in (Verb.STATUS, *verbs)
            ]
        )
        await eventually(lambda: are_served(connection, number))
        yield


async def test_without_a_daemon_the_console_says_what_to_do(client: ConsoleClient) -> None:
    home = await client.read("home")
    assert (home["no_daemon"], home["controllers"]) == (True, [])
    reply = await client.get("keys", controller="shops")
    assert reply.problem == ("not_found", "no controller shops exists")
    reply = await client.act("pause", controller="shops", everything=True)
    assert reply.body["message"] == "controller shops paused"
    assert (await client.get("keys", bucket="nothing")).problem[0] == "not_found"


async def test_an_older_daemon_without_a_verb_is_named_with_what_helps(
    client: ConsoleClient, nats: Nats
) -> None:
    async with fake_daemon(nats.connection, "old", OLD):
        view = await client.read("key", controller="shops", key="a")
        assert (
            "knows explain: the daemons have version 0.0.9" in view["errors"]["explain"]["message"]
        )
        reply = await client.act("plan", controller="shops", keys=["a"])
    assert (reply.status, reply.problem[0]) == (501, "old_daemon")
    assert "natsctl console -c M:C" in reply.problem[1]


class TestSeveralDaemons:
    async def test_keys_time_out_if_no_daemon_answers(
        self, client: ConsoleClient, nats: Nats
    ) -> None:
        answers = {**OLD, "daemon": {**OLD["daemon"], "id": "another"}}  # type: ignore[dict-item]
        async with fake_daemon(nats.connection, "one", answers):
            reply = await client.get("keys", controller="shops")
        assert (reply.status, reply.problem[0]) == (504, "timeout")

    async def test_daemons_that_sync_the_same_keys_are_a_conflict_and_shards_are_added(
        self, client: ConsoleClient, nats: Nats
    ) -> None:
        async def row_of(**fields: str | int) -> None:
            """Wait until the row of the controller has these fields, with two daemons."""

            async def has_fields() -> bool:
                (row,) = (await client.read("home"))["controllers"]
                assert {field: row[field] for field in fields} == fields
                return True

            await eventually(has_fields)

        async with AsyncExitStack() as stack:
            statuses = [
                {**OLD, "daemon": {**OLD["daemon"], "id": id_}}  # type: ignore[dict-item]
                for id_ in ("one", "two")
            ]
            for number, (id_, status) in enumerate(zip(("one", "two"), statuses, strict=True), 1):
                fake = fake_daemon(nats.connection, id_, status, number=number)
                await stack.enter_async_context(fake)
            await row_of(mode="alone \N{MULTIPLICATION SIGN}2", primaries=3)
            (row,) = (await client.read("home"))["controllers"]
            assert row["conflict"].startswith("every key is synced more than once")
            for number, status in enumerate(statuses, 1):
                status |= {"mode": f"shard {number} of 2", "keys": number}
            await row_of(mode="2 shards", keys=3, failing=2)

    async def test_a_daemon_that_only_plans_refuses_actions(
        self, client: ConsoleClient, nats: Nats
    ) -> None:
        async with daemon_on(nats, Greetings(), dry_run=True):
            reply = await client.act("resync", controller="greetings", keys=["a"])
            assert reply.problem[0] == "invalid"
            assert "only plans" in reply.problem[1]


@asynccontextmanager
async def console_of_a_user(
    folder: Path, subjects: Sequence[str]
) -> AsyncIterator[tuple[ConsoleClient, Nats, NatsServer]]:
    """Run a daemon, and the console of the user `ops`, who may publish to these subjects."""
    allowed = ", ".join(f'"{subject}"' for subject in subjects)
    config = f"""
accounts: {{ plants: {{ jetstream: enabled, users: [
  {{ user: admin, password: s3cret }}
  {{ user: ops, password: s3cret, permissions: {{
      publish: {{ allow: [{allowed}] }}, subscribe: {{ allow: ["_INBOX.>"] }}
  }} }}
] }} }}
"""
    async with NatsServer(folder / "nats", config=config) as server:
        admin_options, ops = (
            NatsOptions(servers=(server.url,), user=user, password="s3cret")
            for user in ("admin", "ops")
        )
        async with (
            connect(admin_options) as admin,
            daemon_on(admin, Greetings()),
            console_on(ops) as client,
        ):
            await admin.connection.request("$KV.greetings.shop", b'{"spec": {"text": "hi"}}')
            yield client, admin, server


async def test_what_a_user_may_not_do_is_named(tmp_path: Path) -> None:
    api = "natsctl.api"
    subjects = ("$SRV.INFO.natsctl", f"{api}.status.greetings", f"{api}.explain.greetings")
    async with console_of_a_user(tmp_path, subjects) as (client, _, _):
        assert (await client.read("home"))["controllers"][0]["name"] == "greetings"
        reply = await client.act("resync", controller="greetings", keys=["shop"])
        assert (reply.status, reply.problem[0]) == (403, "refused")
        assert "natsctl.api.resync.greetings" in reply.problem[1]
        view = await client.read("key", controller="greetings", key="shop")
        assert view["explain"][0]["key"] == "shop"
        assert {part: problem["reason"] for part, problem in view["errors"].items()} == {
            "tree": "refused",
            "revisions": "refused",
            "object": "refused",
        }
        assert (await client.get("keys", controller="greetings")).problem[0] == "refused"
        assert (await client.get("buckets")).problem[0] == "refused"


async def test_the_documented_subjects_suffice(tmp_path: Path) -> None:
    async with console_of_a_user(tmp_path, documented_subjects()) as (client, admin, server):
        await eventually(lambda: events_of(admin.connection, "greetings", "shop"))
        await client.read("home")
        await client.read("buckets")
        table = await client.read("keys", controller="greetings")
        assert [row["key"] for row in table["rows"]] == ["shop"]
        view = await client.read("key", controller="greetings", key="shop")
        assert view["errors"] == {}
        reply = await client.act("pause", controller="greetings", keys=["shop"])
        assert (reply.body["warnings"], reply.body["recorded"]) == ([], True)
        events = await events_of(admin.connection, "greetings", "shop")
        (event,) = [event for event in events if event.reason == "ConsolePause"]
        assert "(NATS user ops)" in event.message
    denied = re.findall(r'Violation - Subject "([^"]+)"', server.log())
    assert {subject for subject in denied if "greetings" in subject} == set()


def documented_subjects() -> list[str]:
    """Return the subjects of the operator's commands, and those that the page adds."""
    page = (ROOT / "docs" / "console.md").read_text().partition("## Permissions")[2]
    first = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `$")]
    added = [
        subject.replace("…", "$JS.API.STREAM." if "MSG" in subject else "$JS.API.")
        .replace("KV_B", "KV_greetings")
        .replace(".NAME.", ".greetings.")
        for cell in first
        for subject in re.findall(r"`([^`]+)`", cell)
    ]
    commands = ["$SRV.INFO.natsctl", "natsctl.api.*.greetings", "natsctl.api.gc.*.greetings"]
    schemas = ["$JS.API.STREAM.INFO.KV_natsctl", "$JS.API.STREAM.MSG.GET.KV_natsctl"]
    return [*commands, *schemas, "$KV.greetings.>", *added]


class TestCommand:
    @pytest.fixture
    def natsctl(self, tmp_path: Path, nats_server: NatsServer) -> Natsctl:
        folder = tmp_path / "folder"
        folder.mkdir()
        return Natsctl(folder, nats_server.url)

    async def test_an_interrupt_ends_the_console_although_a_page_is_open(
        self, natsctl: Natsctl
    ) -> None:
        """It also warns that others reach its address."""
        async with natsctl.running("console", "--port", "0", "--bind", "0.0.0.0") as console:
            await console.logged("the console serves http://127.0.0.1:")
            assert "other machines can reach the console on 0.0.0.0, without TLS" in console.log
            url = console.log.split("serves ")[1].split()[0]
            address, _, token = url.partition("#token=")
            headers = {"Authorization": f"Bearer {token}"}
            async with (
                ClientSession(headers=headers) as session,
                session.get(f"{address}api/live") as live,
            ):
                assert (await live.content.readline()).startswith(b"event: ")
                assert await console.ends(signal.SIGINT) == 0
                await asyncio.wait_for(live.content.read(), 60)

    async def test_idle_connections_do_not_keep_the_page_out(
        self, natsctl: Natsctl, nats_server: NatsServer
    ) -> None:
        async with console_command(natsctl) as console, AsyncExitStack() as stack:
            pid = console.process.process.pid
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (FILES, FILES))
            address = ("127.0.0.1", urlsplit(console.base).port)
            async with asyncio.timeout(120):
                connect_to = partial(socket.create_connection, address, timeout=30)
                for _ in range(FILES + 50):
                    stack.enter_context(await asyncio.to_thread(connect_to))
            session = await stack.enter_async_context(ClientSession(headers=console.headers))

            async def is_answered() -> bool:
                try:
                    limit = ClientTimeout(5)
                    async with session.get(f"{console.base}/api/home", timeout=limit) as answer:
                        return answer.status == 200
                except (ClientError, TimeoutError):
                    return False  # while the connections arrive, each new one may be closed

            await eventually(is_answered)

    async def test_the_console_opens_the_page_without_showing_the_token(
        self, nats_server: NatsServer, tmp_path: Path
    ) -> None:
        seen = tmp_path / "seen"
        script = tmp_path / "browser"
        script.write_text(f'#!/bin/sh\necho "$@" >{seen}.tmp\ncat "${{1#file://}}" >>{seen}.tmp\n')
        script.write_text(script.read_text() + f"mv {seen}.tmp {seen}\n")
        script.chmod(0o700)
        natsctl = Natsctl(tmp_path, nats_server.url, environ={"BROWSER": f"{script} %s"})
        async with natsctl.running("console", "--port", "0", "--open") as console:
            await eventually(seen.exists)
            url = console.log.split("serves ")[1].split()[0]
            argument, page = seen.read_text().split("\n", 1)
            assert (argument.startswith("file://"), url in page) == (True, True)

    async def test_a_port_that_is_taken_or_a_missing_server_is_an_error(
        self, natsctl: Natsctl, nats_server: NatsServer, tmp_path: Path
    ) -> None:
        result = await natsctl("console", "--port", str(nats_server.port))
        assert result.status == 2
        assert f"cannot listen on 127.0.0.1:{nats_server.port}" in result.err
        result = await Natsctl(tmp_path, "nats://127.0.0.1:1")("console", "--port", "0")
        assert result.status == 1
        assert "127.0.0.1:1" in result.err
