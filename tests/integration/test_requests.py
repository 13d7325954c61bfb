"""A request returns one reply or raises one error with its meaning."""

from pathlib import Path

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

import natsctl
from natsctl import NatsOptions, kv
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
)
from tests.support.clients.nats import connect
from tests.support.clients.stream_requests import STREAM, put, works
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy


def permitting(permissions: str) -> str:
    """Return a configuration that gives these permissions to the user ann."""
    user = f"{{ user: ann, password: x, permissions: {{ {permissions} }} }}"
    return f"authorization {{ timeout: 60, users: [ {user} ] }}"


def ann(server: NatsServer) -> NatsOptions:
    return NatsOptions(servers=(server.url,), user="ann", password="x", request_timeout_s=3600)


async def test_refusals_become_natsctl_errors(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        with pytest.raises(StoreMissingError, match="stream not found"):
            await connection.api("STREAM.INFO.KV_things")
        await connection.api("STREAM.CREATE.KV_things", STREAM | {"max_msg_size": 100})
        await put(connection, "a")
        with pytest.raises(ConflictError, match="wrong last sequence"):
            await put(connection, "a", after=7)
        with pytest.raises(NotFoundError, match="no message found"):
            await connection.api("STREAM.MSG.GET.KV_things", {"last_by_subj": "$KV.things.b"})
        with pytest.raises(TooLargeError):
            await put(connection, "a", bytes(200))
        with pytest.raises(TooLargeError, match="more than the 1048576"):
            await put(connection, "a", bytes(2_000_000))
        with pytest.raises(StoreError, match="not a NATS subject"):
            await put(connection, "a key")


async def test_the_error_without_responders_has_the_reason(tmp_path: Path) -> None:
    async with (
        NatsServer(tmp_path, jetstream=False) as server,
        connect(server.url) as connection,
    ):
        for subject, reason in (
            ("$JS.API.INFO", "JetStream is not enabled"),
            ("$KV.things.a", "the bucket does not exist, or has no leader"),
            ("elsewhere", "it has no subscribers"),
        ):
            with pytest.raises(StoreError, match=f"no answer to .*: {reason}") as caught:
                await connection.request(subject, b"")
            assert isinstance(caught.value.__cause__, NoRespondersError)


async def test_a_request_has_a_deadline(nats_server: NatsServer) -> None:
    async with connect(nats_server.url) as connection:
        await connection.client.subscribe("silent")
        with pytest.raises(StoreTimeoutError, match=r"silent was not answered within 0\.01 s"):
            await connection.request("silent", b"", timeout_s=0.01)
        assert await works(connection)


async def test_a_forbidden_request_fails_at_once_and_names_the_subject(tmp_path: Path) -> None:
    config = permitting('publish: { deny: ["$JS.API.STREAM.INFO.>"] }')
    async with NatsServer(tmp_path, config=config) as server, connect(ann(server)) as connection:
        with pytest.raises(PermissionDeniedError, match=r"publish to \$JS.API.STREAM.INFO.Ab"):
            await connection.api("STREAM.INFO.Ab")
        assert await works(connection)
        assert connection.losses == 0


async def test_a_missing_inbox_permission_is_an_error_with_advice(tmp_path: Path) -> None:
    config = permitting('subscribe: { allow: ["_MINE.>"] }')
    async with NatsServer(tmp_path, config=config) as server:
        async with connect(ann(server)) as connection:
            for _ in range(2):
                with pytest.raises(PermissionDeniedError, match=r"allow _INBOX\.>"):
                    await connection.api("INFO")
        async with connect(NatsOptions(inbox_prefix="_MINE").over(ann(server))) as connection:
            assert await works(connection)


async def test_may_subscribe_reports_the_permissions_of_the_user(tmp_path: Path) -> None:
    """A forbidden subscription is a background error with the exact subject."""
    config = permitting('publish: ["other"], subscribe: ["_INBOX.>", "Known.*"]')
    async with NatsServer(tmp_path, config=config) as server, connect(ann(server)) as connection:
        for _ in range(20):
            assert await connection.may_subscribe("Known.thing")
            assert not await connection.may_subscribe("Secret.thing")
        assert connection.state().errors == 0
        await connection.client.subscribe("Secret.Thing")
        await eventually(lambda: connection.state().errors)
        assert connection.state().last_error == (
            "this NATS user may not subscribe to Secret.Thing: allow it in the user's permissions"
        )
        server.kill()
        with pytest.raises(StoreError):
            await connection.may_subscribe("Known.thing")


async def test_an_answer_does_not_wait_behind_the_messages_of_a_watch(cut_proxy: CutProxy) -> None:
    async with natsctl.connect(cut_proxy.url) as nats:
        store = await nats.open(kv(bytes, bucket="many"))
        async with store.watch():
            with cut_proxy.holding_newest():
                stored = await store.create("shop", b"1")
                assert await store.get("shop") == stored


async def test_a_request_over_a_socket_that_is_closed_fails_as_not_sent(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(nats_server.url) as connection:
        client = connection.client

        def closed(_data: object) -> None:  # as uvloop does; asyncio only logs it
            raise RuntimeError("unable to perform operation: the handler is closed")

        monkeypatch.setattr(client._transport, "writelines", closed)  # noqa: SLF001 - the fault
        for _ in range(2):  # the first one ends the task that flushes
            with pytest.raises(StoreError, match=r"was not (sent|answered)"):
                await connection.api("INFO", timeout_s=1.0)
        with pytest.raises(NatsError):
            await client.flush(1)
