"""Subjects with any byte except space, tab and newline do not disturb the connection."""

import asyncio

from nats.aio.msg import Msg

from tests.support.clients.nats import connect
from tests.support.clients.raw_nats_client import stranger
from tests.support.clients.stream_requests import works
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

ODD = [b"a\x0bb", b"a\x0cb", b"a\xffb", b"a\x00b", b"a\x1b[31mb", b"a\xc2\x85b", b"\x1c"]


async def test_messages_with_unusual_subjects_arrive(nats_server: NatsServer) -> None:
    received: list[bytes] = []
    tapped: list[bytes] = []

    async def note(message: Msg) -> None:
        received.append(message.data)

    async with connect(nats_server.url) as connection, stranger(nats_server.url) as stranger_client:
        await connection.client.subscribe("plain.*", cb=note)
        await connection.client.subscribe_raw(
            "tapped.*", lambda messages: tapped.extend(subject for subject, *_ in messages)
        )
        assert await works(connection)
        for odd in ODD:
            for prefix in (b"plain.", b"tapped."):
                stranger_client.publish(prefix + odd, odd)
                stranger_client.publish(prefix + odd, odd, headers=b"NATS/1.0\r\n\r\n")
        await eventually(lambda: len(received) == len(tapped) == 2 * len(ODD))
        assert tapped == [b"tapped." + odd for odd in ODD for _ in range(2)]
        assert received == [odd for odd in ODD for _ in range(2)]
        assert connection.losses == 0


async def test_requests_with_unusual_reply_subjects_do_not_end_the_connection(
    nats_server: NatsServer,
) -> None:
    async with connect(nats_server.url) as connection, stranger(nats_server.url) as stranger_client:
        client, reply_subjects = connection.client, list[str]()

        async def reply(message: Msg) -> None:
            reply_subjects.append(message.reply)
            await client.publish(message.reply, b"answer")

        await client.subscribe("question", cb=reply)
        assert await works(connection)
        for odd in (*ODD, b"a..b", b"*", b">", b".", b"$JS.API.INFO"):
            reply_subjects.clear()
            for _ in range(40):
                stranger_client.publish(b"question", b"", reply=odd)
            await eventually(lambda: len(reply_subjects) == 40)
            assert await works(connection)
        assert connection.losses == 0


async def test_malformed_header_blocks_do_not_end_the_connection(nats_server: NatsServer) -> None:
    received: list[bytes] = []

    async def note(message: Msg) -> None:
        received.append(message.data)

    async with connect(nats_server.url) as connection, stranger(nats_server.url) as stranger_client:
        await connection.client.subscribe("plain", cb=note)
        assert await works(connection)
        blocks = (b"", b"\r\n", b"hello", b"NATS/1.0", b"\xff: \xff\r\n\r\n")
        for headers in blocks:
            stranger_client.publish(b"plain", b"value", headers=headers)
        await eventually(lambda: received == [b"value"] * len(blocks))
        assert await works(connection)
        assert connection.losses == 0


async def test_no_subject_delivers_a_message_to_another_subscription(
    nats_server: NatsServer,
) -> None:
    received: dict[str, list[str]] = {"mine.*": [], "public.*": []}

    async def mine(message: Msg) -> None:
        received["mine.*"].append(message.subject)

    async def public(message: Msg) -> None:
        received["public.*"].append(message.subject)

    async with connect(nats_server.url) as connection, stranger(nats_server.url) as stranger_client:
        await connection.client.subscribe("mine.*", cb=mine)
        await connection.client.subscribe("public.*", cb=public)
        assert await works(connection)
        forged = [b"public.x\x0b%d" % sid for sid in range(10)]
        for subject in forged:
            stranger_client.publish(subject, b"hi")
        await eventually(lambda: len(received["public.*"]) == len(forged))
    assert received == {"mine.*": [], "public.*": [subject.decode() for subject in forged]}


async def test_one_reply_subject_does_not_reveal_the_next(
    nats_server: NatsServer,
) -> None:
    replies: list[str] = []

    async def note(message: Msg) -> None:
        replies.append(message.reply)

    async with (
        connect(nats_server.url) as connection,
        connect(nats_server.url) as responder,
        stranger(nats_server.url) as stranger_client,
    ):
        await responder.client.subscribe("question", cb=note)
        assert await works(responder)
        first = asyncio.create_task(connection.request("question", b""))
        await eventually(lambda: len(replies) == 1)
        await responder.client.publish(replies[0], b"")
        await first
        second = asyncio.create_task(connection.request("question", b""))
        await eventually(lambda: len(replies) == 2)
        inbox = replies[0].rpartition(".")[0].encode()
        for guess in range(1000):
            stranger_client.publish(b"%b.%d" % (inbox, guess), b"forged")
        await stranger_client.flush()
        await responder.client.publish(replies[1], b"genuine")
        assert (await second).data == b"genuine"
