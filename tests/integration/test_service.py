"""A NATS micro service: discovery, requests over reconnects, and limits on requests."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.service import PING_RESPONSE_TYPE, ServiceInfo, ServiceStats

from natsctl.daemon.client import Daemons
from natsctl.daemon.messages import NAME, Verb
from natsctl.errors import (
    ConflictError,
    NatsctlError,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
    TooManyRequestsError,
)
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.service import (
    BURST,
    ERROR,
    ERROR_CODE,
    RATE,
    WORKING_MAX,
    Endpoint,
    ServiceIdentity,
    ask_all,
    services,
    serving,
)
from tests.support.clients.daemons import ask
from tests.support.clients.plain_client import plain_client
from tests.support.clients.raw_nats_client import stranger
from tests.support.clients.stream_requests import STREAM, messages
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

FLOOD = 12_000  # more than the refusals that wait
IDENTITY = ServiceIdentity(
    name="shops", version="1.2.3", description="d", metadata={"host": "h"}, id="one"
)


async def echo(request_data: bytes) -> bytes:
    return b"you said " + request_data


async def conflict(_: bytes) -> bytes:
    raise ConflictError("it changed\nmeanwhile")


async def stumble(_: bytes) -> bytes:
    raise ValueError("s3cret")


async def flood(_: bytes) -> bytes:
    return b"x" * 2_000_000


ENDPOINTS = [
    Endpoint(name="echo", subject="shops.echo", handler=echo, metadata={"a": "b"}),
    Endpoint(name="conflict", subject="shops.conflict", handler=conflict, group="q"),
    Endpoint(name="stumble", subject="shops.stumble", handler=stumble),
    Endpoint(name="flood", subject="shops.flood", handler=flood),
]


@pytest.fixture
async def connection(nats_server: NatsServer) -> AsyncIterator[Connection]:
    async with connect(nats_server.url) as opened:
        yield opened


@pytest.fixture
async def raw_client(nats_server: NatsServer) -> AsyncIterator[Client]:
    async with plain_client(nats_server.url) as client:
        yield client


@pytest.fixture
async def service(connection: Connection) -> AsyncIterator[None]:
    async with serving(connection, IDENTITY) as opened:
        opened.offer(ENDPOINTS)
        await eventually(lambda: responds(connection, "shops.echo"))
        yield


async def responds(connection: Connection, subject: str) -> bool:
    try:
        await ask(connection, subject, timeout_s=2)
    except StoreError:
        return False
    return True


async def counts(connection: Connection, requests: int) -> bool:
    """Return whether the service has counted so many requests to its first endpoint, or more."""
    stats = json.loads(await ask(connection, "$SRV.STATS.shops.one", timeout_s=30))
    return bool(stats["endpoints"][0]["num_requests"] >= requests)


async def test_the_service_answers_the_nats_micro_protocol(
    service: None, raw_client: Client
) -> None:
    for suffix in ("", ".shops", ".shops.one"):
        ping = json.loads((await raw_client.request(f"$SRV.PING{suffix}")).data)
        assert ping == {
            "type": PING_RESPONSE_TYPE,
            "name": "shops",
            "id": "one",
            "version": "1.2.3",
            "metadata": {"host": "h"},
        }
        reply = await raw_client.request(f"$SRV.INFO{suffix}")
        info = ServiceInfo.from_dict(json.loads(reply.data))
        assert (info.name, info.description) == ("shops", "d")
        echo, conflict, *_ = info.endpoints
        assert (echo.name, echo.subject, echo.queue_group) == ("echo", "shops.echo", "")
        assert (conflict.name, conflict.queue_group) == ("conflict", "q")
        assert echo.metadata == {"a": "b"}


async def statistics(client: Client) -> dict[str, Any]:
    return dict(json.loads((await client.request("$SRV.STATS.shops")).data))


async def test_requests_are_answered_and_counted(service: None, raw_client: Client) -> None:
    before = (await statistics(raw_client))["endpoints"][0]["num_requests"]
    assert (await raw_client.request("shops.echo", b"hello")).data == b"you said hello"
    refused = await raw_client.request("shops.conflict")
    assert refused.headers == {ERROR: "it changed meanwhile", ERROR_CODE: "409"}
    message = await statistics(raw_client)
    stats = {endpoint["name"]: endpoint for endpoint in message["endpoints"]}
    assert (stats["echo"]["num_requests"], stats["echo"]["num_errors"]) == (before + 1, 0)
    assert (stats["conflict"]["num_requests"], stats["conflict"]["num_errors"]) == (1, 1)
    assert stats["conflict"]["last_error"] == "it changed meanwhile"
    assert stats["conflict"]["processing_time"] == stats["conflict"]["average_processing_time"] > 0
    message["endpoints"] = [{**endpoint, "data": None} for endpoint in message["endpoints"]]
    assert ServiceStats.from_dict(message).id == "one"


async def test_errors_of_natsctl_keep_their_type_and_others_are_only_logged(
    service: None, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConflictError, match="it changed meanwhile"):
        await ask(connection, "shops.conflict", timeout_s=30)
    with pytest.raises(TooLargeError, match="larger than NATS accepts"):
        await ask(connection, "shops.flood", timeout_s=30)
    with caplog.at_level(logging.ERROR), pytest.raises(NatsctlError) as caught:
        await ask(connection, "shops.stumble", timeout_s=30)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" in caplog.text


async def test_a_request_reaches_every_instance_or_one_of_a_queue_group(
    service: None, nats_server: NatsServer, connection: Connection
) -> None:
    twin = ServiceIdentity(name="shops", version="1.2.3", id="two")
    async with (
        connect(nats_server.url) as second_connection,
        serving(second_connection, twin) as second,
    ):
        second.offer(ENDPOINTS)

        async def both_are_found() -> bool:
            results = await services(connection, "shops", timeout_s=30)
            return sorted(info.id for info in results) == ["one", "two"]

        await eventually(both_are_found)
        results = await ask_all(connection, "shops.echo", expected=2, timeout_s=30)
        assert len(results) == 2
        results = await ask_all(connection, "shops.conflict", timeout_s=30)
        assert [type(answer.error) for answer in results] == [ConflictError]


async def test_requests_above_the_concurrency_limit_are_refused(
    connection: Connection, raw_client: Client
) -> None:
    go = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        await go.wait()
        return b"done"

    async with serving(connection, IDENTITY) as service:
        service.offer([Endpoint(name="wait", subject="shops.wait", handler=wait), ENDPOINTS[0]])
        await eventually(lambda: responds(connection, "shops.echo"))
        pending = [
            asyncio.create_task(raw_client.request("shops.wait", timeout=60))
            for _ in range(WORKING_MAX + 3)
        ]
        await eventually(lambda: sum(task.done() for task in pending) == 3)
        refusals = [task.result() for task in pending if task.done()]
        assert {refusal.headers[ERROR_CODE] for refusal in refusals} == {"429"}  # type: ignore[index]
        later = asyncio.create_task(ask(connection, "shops.wait", timeout_s=60))
        go.set()
        results = [message.data for message in await asyncio.gather(*pending)]
        assert results.count(b"done") == WORKING_MAX
        assert await later == b"done"


async def test_a_flood_of_requests_is_refused_while_the_process_continues(
    nats_server: NatsServer, connection: Connection, raw_client: Client
) -> None:
    worked = 0
    responses: list[Msg] = []

    async def work(_: bytes) -> bytes:
        nonlocal worked
        worked += 1
        return b"done"

    async def note(message: Msg) -> None:
        responses.append(message)

    async with serving(connection, IDENTITY) as service, stranger(nats_server.url) as flooding:
        service.offer([Endpoint(name="work", subject="shops.work", handler=work)])
        await eventually(lambda: responds(connection, "shops.work"))
        await raw_client.subscribe("_INBOX.replies", cb=note)
        await raw_client.request("$JS.API.INFO")
        clock = asyncio.get_running_loop().time
        begun = clock()
        for _ in range(FLOOD):
            flooding.publish(b"shops.work", b"", reply=b"_INBOX.replies")
        await flooding.flush()
        assert await connection.api("INFO")
        assert connection.client.subscribed("shops.work") is None  # it's not behind the flood
        await eventually(lambda: any(message.headers for message in responses))
        await eventually(lambda: counts(connection, FLOOD))
        assert worked <= BURST + RATE * (clock() - begun) + 1
        codes = {message.headers[ERROR_CODE] for message in responses if message.headers}
        assert codes == {"429"}
        assert await ask(connection, "shops.work", timeout_s=30) == b"done"


async def test_answers_are_sent_to_inboxes_only(
    nats_server: NatsServer,
    service: None,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = STREAM | {"subjects": [*STREAM["subjects"], "natsctl.>", "things.>", "_R_x"]}
    await connection.api("STREAM.CREATE.KV_things", stream)
    async with stranger(nats_server.url) as stranger_client:
        for reply in (
            *(b"$KV.things.a", b"$JS.API.STREAM.DELETE.KV_things", b"_INBOX.a..b", b"_INBOX.>"),
            *(b"natsctl.events.pages.p1", b"things.a", b"_R_x"),
        ):
            stranger_client.publish(b"shops.echo", b"", reply=reply)
            stranger_client.publish(b"$SRV.PING.shops", b"", reply=reply)
        await stranger_client.flush()
    assert await responds(connection, "shops.echo")
    assert await messages(connection) == 0
    assert connection.state().errors == 0
    assert "a request isn't answered, because its reply subject isn't an inbox" in caplog.text


async def test_a_pending_request_fails_when_its_connection_is_lost(
    cut_proxy: CutProxy,
) -> None:
    async with connect(cut_proxy.url) as second_connection:
        await second_connection.client.subscribe("silent")
        await second_connection.client.flush()
        asking = asyncio.create_task(ask_all(second_connection, "silent", expected=1, timeout_s=60))
        await asyncio.sleep(0)
        cut_proxy.cut()
        with pytest.raises(StoreError, match=r"whether it took effect is unknown|was not sent"):
            await asking


async def test_a_dead_instance_does_not_delay_the_answers_of_others(
    service: None, connection: Connection, cut_proxy: CutProxy
) -> None:
    twin = ServiceIdentity(name="shops", version="1.2.3", id="two")
    async with (
        connect(cut_proxy.url) as second_connection,
        serving(second_connection, twin) as second,
    ):
        second.offer(ENDPOINTS)

        async def both_answer() -> bool:
            return len(await ask_all(connection, "shops.echo", expected=2, timeout_s=2)) == 2

        await eventually(both_answer)
        cut_proxy.freeze()

        async def one_answers() -> bool:
            with suppress(StoreTimeoutError):  # no answer within the second
                results = await ask_all(connection, "shops.echo", b"you", expected=2, timeout_s=1)
                return [answer.data for answer in results] == [b"you said you"]
            return False

        await eventually(one_answers)
        cut_proxy.thaw()


async def test_an_invalid_answer_is_reported_as_a_version_difference(
    connection: Connection,
) -> None:
    async def newer(_: bytes) -> bytes:
        return b'{"controller": 5}'

    subject, about = Verb.STATUS.subject("shops"), {"controller": "shops"}
    endpoint = Endpoint(name="status", subject=subject, handler=newer, metadata=about)
    identity = ServiceIdentity(name=NAME, version="99.0.0")
    async with serving(connection, identity) as service:
        service.offer([endpoint])
        await eventually(lambda: responds(connection, subject))
        daemons = await Daemons.find(connection)
        with pytest.raises(NatsctlError, match="the daemon may have another version"):
            await daemons.status("shops")


async def test_a_service_that_stays_too_busy_raises_too_many_requests(
    connection: Connection, raw_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.daemon.client.FIND_S", 1.0)

    async def busy(message: Msg) -> None:
        headers = {ERROR: "there are too many requests: try again later", ERROR_CODE: "429"}
        await raw_client.publish(message.reply, b"", headers=headers)

    await raw_client.subscribe("$SRV.INFO.natsctl", cb=busy)
    await raw_client.request("$JS.API.INFO")

    async def is_late() -> bool:
        with suppress(StoreTimeoutError):  # no answer within the second
            await Daemons.find(connection)
        return False

    with pytest.raises(TooManyRequestsError, match="try again later"):
        await eventually(is_late)
