"""A micro service on our connection: found by others, asked over reconnects, never overrun."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.micro.service import PING_RESPONSE_TYPE, ServiceInfo, ServiceStats

from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.verbs import NAME, Verb
from natsctl.errors import (
    ConflictError,
    NatsctlError,
    StoreError,
    TooLargeError,
    TooManyRequestsError,
)
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.service.client import ask, ask_all, services
from natsctl.jetstream.service.errors import ERROR, ERROR_CODE
from natsctl.jetstream.service.intake import BURST, RATE
from natsctl.jetstream.service.server import WORKING_MAX, Endpoint, ServiceIdentity, serving
from tests.support.clients.raw_nats_client import stranger
from tests.support.clients.stream_requests import STREAM, messages
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

FLOOD = 23_000
IDENTITY = ServiceIdentity(
    name="shops", version="1.2.3", description="d", metadata={"host": "h"}, id="one"
)


async def echo(asked: bytes) -> bytes:
    return b"you said " + asked


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
async def other(nats_server: NatsServer) -> AsyncIterator[Client]:
    """A client that knows nothing of natsctl."""
    client = await nats.connect(nats_server.url)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def service(connection: Connection) -> AsyncIterator[None]:
    async with serving(connection, IDENTITY) as opened:
        opened.offer(ENDPOINTS)
        await eventually(lambda: answers(connection, "shops.echo"))
        yield


async def answers(connection: Connection, subject: str) -> bool:
    try:
        await ask(connection, subject, timeout_s=2)
    except StoreError:
        return False
    return True


@pytest.mark.parametrize("whom", ["", ".shops", ".shops.one"])
async def test_it_is_found_by_whoever_speaks_the_protocol(
    service: None, other: Client, whom: str
) -> None:
    ping = json.loads((await other.request(f"$SRV.PING{whom}")).data)
    assert ping == {
        "type": PING_RESPONSE_TYPE,
        "name": "shops",
        "id": "one",
        "version": "1.2.3",
        "metadata": {"host": "h"},
    }
    info = ServiceInfo.from_dict(json.loads((await other.request(f"$SRV.INFO{whom}")).data))
    assert (info.name, info.description) == ("shops", "d")
    assert [(at.name, at.subject, at.queue_group) for at in info.endpoints][:2] == [
        ("echo", "shops.echo", ""),
        ("conflict", "shops.conflict", "q"),
    ]
    assert info.endpoints[0].metadata == {"a": "b"}


async def test_another_service_is_not_meant(service: None, other: Client) -> None:
    for subject in ("$SRV.PING.others", "$SRV.PING.shops.two"):
        with pytest.raises(NoRespondersError):
            await other.request(subject)


async def test_what_is_asked_is_answered_and_counted(service: None, other: Client) -> None:
    assert (await other.request("shops.echo", b"hello")).data == b"you said hello"
    refused = await other.request("shops.conflict")
    assert refused.headers == {ERROR: "it changed meanwhile", ERROR_CODE: "409"}
    message = json.loads((await other.request("$SRV.STATS.shops")).data)
    told = {at["name"]: at for at in message["endpoints"]}
    assert (told["echo"]["num_requests"], told["echo"]["num_errors"]) == (2, 0)
    assert (told["conflict"]["num_requests"], told["conflict"]["num_errors"]) == (1, 1)
    assert told["conflict"]["last_error"] == "it changed meanwhile"
    assert told["conflict"]["processing_time"] == told["conflict"]["average_processing_time"] > 0
    message["endpoints"] = [{**at, "data": None} for at in message["endpoints"]]
    assert ServiceStats.from_dict(message).id == "one"


async def test_our_errors_come_back_as_they_were(service: None, connection: Connection) -> None:
    with pytest.raises(ConflictError, match="it changed meanwhile"):
        await ask(connection, "shops.conflict", timeout_s=2)
    with pytest.raises(TooLargeError, match="larger than NATS accepts"):
        await ask(connection, "shops.flood", timeout_s=2)


async def test_what_nobody_foresaw_goes_to_the_log_and_not_to_whoever_asked(
    service: None, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(NatsctlError) as caught:
        await ask(connection, "shops.stumble", timeout_s=2)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" in caplog.text


async def test_it_answers_again_when_the_connection_is_another_one(
    cut_proxy: CutProxy, connection: Connection
) -> None:
    options = NatsOptions(servers=(cut_proxy.url,), silence_s=0.5)
    async with connect(options) as theirs, serving(theirs, IDENTITY) as service:
        service.offer(ENDPOINTS)
        await eventually(lambda: answers(connection, "shops.echo"))
        before = theirs.losses
        cut_proxy.cut()
        await eventually(lambda: theirs.losses > before)
        await cut_proxy.heal()
        await eventually(lambda: answers(connection, "shops.echo"))
        found = await ask_all(connection, "shops.echo", b"once", timeout_s=5)
        assert [answer.data for answer in found] == [b"you said once"]
        assert service.stats().endpoints[0].num_requests >= 3


async def test_all_are_asked_where_there_is_no_group_and_one_where_there_is(
    service: None, nats_server: NatsServer, connection: Connection
) -> None:
    twin = ServiceIdentity(name="shops", version="1.2.3", id="two")
    async with connect(nats_server.url) as theirs, serving(theirs, twin) as second:
        second.offer(ENDPOINTS)

        async def both_are_found() -> bool:
            found = await services(connection, "shops", timeout_s=2)
            return sorted(info.id for info in found) == ["one", "two"]

        await eventually(both_are_found)
        found = await ask_all(connection, "shops.echo", expected=2, timeout_s=5)
        assert len(found) == 2
        found = await ask_all(connection, "shops.conflict", timeout_s=5)
        assert [type(answer.error) for answer in found] == [ConflictError]


async def test_what_is_offered_no_more_is_asked_of_nobody(connection: Connection) -> None:
    async with serving(connection, IDENTITY) as service:
        service.offer(ENDPOINTS)
        await eventually(lambda: answers(connection, "shops.echo"))
        service.offer(ENDPOINTS[1:])

        async def nobody() -> bool:
            try:
                await ask(connection, "shops.echo", timeout_s=2)
            except StoreError as error:
                return isinstance(error.__cause__, NoRespondersError)
            return False

        await eventually(nobody)
        assert [info.id for info in await services(connection, "shops", timeout_s=2)] == ["one"]
    assert await services(connection, "shops", timeout_s=2) == []
    with pytest.raises(StoreError, match="no answer to"):
        await ask_all(connection, "shops.conflict", timeout_s=2)


async def test_what_others_answer_in_its_place_is_left_out(
    service: None, nats_server: NatsServer, connection: Connection
) -> None:
    stranger = await nats.connect(nats_server.url)

    async def nonsense(message: Msg) -> None:
        await message.respond(b"\xff")

    await stranger.subscribe("$SRV.INFO.shops", cb=nonsense)

    async def both_answer() -> bool:
        heard = await ask_all(connection, "$SRV.INFO.shops", expected=2, timeout_s=1)
        return b"\xff" in [answer.data for answer in heard]

    await eventually(both_answer)
    assert [info.id for info in await services(connection, "shops", timeout_s=2)] == ["one"]
    await stranger.close()


async def test_more_requests_than_can_be_worked_on_are_refused(
    connection: Connection, other: Client
) -> None:
    go = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        await go.wait()
        return b"done"

    async with serving(connection, IDENTITY) as service:
        service.offer([Endpoint(name="wait", subject="shops.wait", handler=wait), ENDPOINTS[0]])
        await eventually(lambda: answers(connection, "shops.echo"))
        asked = [
            asyncio.create_task(other.request("shops.wait", timeout=60))
            for _ in range(WORKING_MAX + 3)
        ]
        await eventually(lambda: sum(task.done() for task in asked) == 3)
        refusals = [task.result() for task in asked if task.done()]
        assert {refusal.headers[ERROR_CODE] for refusal in refusals} == {"429"}  # type: ignore[index]
        again = asyncio.create_task(ask(connection, "shops.wait", timeout_s=60))
        go.set()
        results = [message.data for message in await asyncio.gather(*asked)]
        assert results.count(b"done") == WORKING_MAX
        assert await again == b"done"


async def test_a_flood_of_requests_is_refused_and_the_rest_of_the_process_goes_on(
    nats_server: NatsServer, connection: Connection, other: Client
) -> None:
    worked = 0
    answered: list[Msg] = []

    async def work(_: bytes) -> bytes:
        nonlocal worked
        worked += 1
        return b"done"

    async def note(message: Msg) -> None:
        answered.append(message)

    async with serving(connection, IDENTITY) as service, stranger(nats_server.url) as flooding:
        service.offer([Endpoint(name="work", subject="shops.work", handler=work)])
        await eventually(lambda: answers(connection, "shops.work"))
        await other.subscribe("replies", cb=note)
        await other.request("$JS.API.INFO")
        clock = asyncio.get_running_loop().time
        begun = clock()
        for _ in range(FLOOD):
            flooding.publish(b"shops.work", b"", reply=b"replies")
        await flooding.flush()
        assert await connection.api("INFO")  # answered behind the whole flood
        sent_so_far = len(answered)
        await eventually(lambda: len(answered) > sent_so_far)  # refusals are still being sent
        (stats,) = service.stats().endpoints
        assert stats.num_requests == FLOOD + 1
        assert worked <= BURST + RATE * (clock() - begun) + 1
        codes = {message.headers[ERROR_CODE] for message in answered if message.headers}
        assert codes == {"429"}
        assert await ask(connection, "shops.work", timeout_s=30) == b"done"


async def test_a_flood_of_the_protocols_own_questions_is_refused_too(
    nats_server: NatsServer, service: None, connection: Connection, other: Client
) -> None:
    answered: list[Msg] = []

    async def note(message: Msg) -> None:
        answered.append(message)

    async with stranger(nats_server.url) as flooding:
        await other.subscribe("replies", cb=note)
        await other.request("$JS.API.INFO")
        for _ in range(3 * BURST):
            flooding.publish(b"$SRV.INFO.shops", b"", reply=b"replies")
        await eventually(lambda: len(answered) == 3 * BURST)
        refused = [message for message in answered if message.headers]
        assert len(refused) >= BURST
        assert [info.name for info in await services(connection, "shops", timeout_s=30)] == [
            "shops"
        ]


@pytest.mark.parametrize("reply", [b"$KV.things.a", b"$JS.API.STREAM.DELETE.KV_things", b"a..b"])
async def test_no_answer_is_sent_where_it_would_do_something(
    nats_server: NatsServer, service: None, connection: Connection, reply: bytes
) -> None:
    await connection.api("STREAM.CREATE.KV_things", STREAM)
    async with stranger(nats_server.url) as other:
        other.publish(b"shops.echo", b"", reply=reply)
        other.publish(b"$SRV.PING.shops", b"", reply=reply)
        await other.flush()
    assert await answers(connection, "shops.echo")
    assert await messages(connection) == 0
    assert connection.state().errors == 0


async def test_a_service_that_stays_too_busy_is_reported_as_such(
    connection: Connection, other: Client
) -> None:
    async def busy(message: Msg) -> None:
        headers = {ERROR: "there are too many requests: try again later", ERROR_CODE: "429"}
        await other.publish(message.reply, b"", headers=headers)

    await other.subscribe("$SRV.INFO.natsctl", cb=busy)
    await other.request("$JS.API.INFO")
    with pytest.raises(TooManyRequestsError, match="try again later"):
        await Daemons.find(connection)


async def test_who_waits_for_answers_is_told_that_the_connection_is_lost(
    cut_proxy: CutProxy,
) -> None:
    async with connect(cut_proxy.url) as theirs:
        await theirs.client.subscribe("silent")
        await theirs.client.flush()
        asking = asyncio.create_task(ask_all(theirs, "silent", expected=1, timeout_s=60))
        await asyncio.sleep(0)
        cut_proxy.cut()
        with pytest.raises(StoreError, match=r"whether it took effect is unknown|was not sent"):
            await asking


async def test_who_waits_while_it_stops_is_told_so(connection: Connection) -> None:
    begun = asyncio.Event()

    async def wait(_: bytes) -> bytes:
        begun.set()
        await asyncio.sleep(3600)
        return b"done"

    async with serving(connection, IDENTITY) as service:
        service.offer([Endpoint(name="wait", subject="shops.wait", handler=wait), ENDPOINTS[0]])
        await eventually(lambda: answers(connection, "shops.echo"))
        asking = asyncio.create_task(ask(connection, "shops.wait", timeout_s=60))
        await begun.wait()
    with pytest.raises(NatsctlError, match="stopped during the request"):
        await asking


async def test_of_several_that_are_asked_one_that_died_keeps_no_answer_back(
    service: None, connection: Connection, cut_proxy: CutProxy
) -> None:
    twin = ServiceIdentity(name="shops", version="1.2.3", id="two")
    async with connect(cut_proxy.url) as theirs, serving(theirs, twin) as second:
        second.offer(ENDPOINTS)

        async def both() -> bool:
            return len(await ask_all(connection, "shops.echo", expected=2, timeout_s=2)) == 2

        await eventually(both)
        cut_proxy.freeze()
        found = await ask_all(connection, "shops.echo", b"you", expected=2, timeout_s=1)
        assert [answer.data for answer in found] == [b"you said you"]
        cut_proxy.thaw()


async def test_an_answer_of_another_version_is_told_as_such(connection: Connection) -> None:
    async def newer(_: bytes) -> bytes:
        return b'{"controller": 5}'

    subject, about = Verb.STATUS.subject("shops"), {"controller": "shops"}
    endpoint = Endpoint(name="status", subject=subject, handler=newer, metadata=about)
    identity = ServiceIdentity(name=NAME, version="99.0.0")
    async with serving(connection, identity) as service:
        service.offer([endpoint])
        await eventually(lambda: answers(connection, subject))
        daemons = await Daemons.find(connection)
        with pytest.raises(NatsctlError, match="the daemon may have another version"):
            await daemons.status("shops")
