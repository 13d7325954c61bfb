"""Unexpected messages from other clients do not disturb a controller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import pytest
from nats.aio.msg import Msg

from natsctl.daemon.messages import Verb
from natsctl.daemon.service import answering
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.service import NoServiceError
from tests.support.clients.daemons import ask
from tests.support.clients.nats_admin import Admin, Refused
from tests.support.clients.raw_nats_client import Stranger, stranger
from tests.support.controllers.copy_controller import COPIES, THINGS, Copies
from tests.support.eventually import eventually
from tests.support.faults.invariants import text_of
from tests.support.faults.nats_test_bed import NatsTestBed, breaks, nats_test_bed, running
from tests.support.servers.nats_server import NatsServer

pytestmark = pytest.mark.usefixtures("patient")

SERVER_PENDING = 64 * 2**20  # bytes that a server keeps for a client before it's a slow consumer
STATUS = {"Status": "503", "Description": "I am no control message"}


async def publish_to_inboxes(admin: Admin, payload: bytes) -> None:
    """Publish to the deliver subjects of all consumers."""
    for stream, names in (await admin.consumers()).items():
        for name in names:
            with suppress(Refused):  # the watch broke, and deleted its consumer
                info = await admin.api(f"CONSUMER.INFO.{stream}.{name}")
                await admin.publish(info["config"]["deliver_subject"], payload)


async def test_a_foreign_message_to_the_inbox_of_a_watch_restarts_the_watch(
    nats_server: NatsServer,
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        for payload in (b"", b"nonsense"):
            await bed.break_watches(partial(publish_to_inboxes, bed.admin, payload))
            await bed.user.put_all()
            await bed.settled()


async def test_a_value_with_the_headers_of_a_control_message_is_invalid(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nats_test_bed(nats_server.url) as bed:
        for key in ("odd", "k1"):
            await bed.admin.request(f"$KV.{THINGS}.{key}", b"", STATUS)
        await eventually(lambda: set(bed.runtime.status().invalid) == {"odd", "k1"})
        await bed.user.put_all()
        await bed.admin.delete(THINGS, "odd")
        bed.user.mortal.add("odd")
        await bed.settled()
        assert not breaks(caplog)


async def test_illegal_keys_are_invalid_and_disturb_no_other_key(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    text, deleted = b'{"spec": {"text": "hi"}}', b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    names = {b"a\x0bb": r"a\x0bb", b"a\x0cb": r"a\x0cb", b"a\xffb": r"a\xffb", b"*": "*"}
    async with nats_test_bed(nats_server.url) as bed, stranger(nats_server.url) as stranger_client:
        for bucket in (THINGS, COPIES):
            for name in names:
                subject = f"$KV.{bucket}.".encode() + name
                stranger_client.publish(subject, text)
                stranger_client.publish(subject, b"", headers=deleted)
                stranger_client.publish(subject, text)
        await stranger_client.flush()
        await eventually(lambda: set(bed.runtime.status().invalid) == set(names.values()))
        await bed.user.put_all()
        texts = {key: text_of((await bed.admin.entry(THINGS, key)).value) for key in bed.user.keys}
        await eventually(lambda: bed.sights.synced == texts)
        assert (breaks(caplog), bed.sights.gone) == ([], set())
        second = Copies()
        async with running(second, nats_server.url):
            await eventually(lambda: second.sights.synced == texts)
            assert set(second.runtime.status().invalid) == set(names.values())
        assert not second.sights.gone


async def test_a_flood_of_requests_does_not_delay_a_sync(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        nats_test_bed(nats_server.url) as bed,
        answering(bed.connection, [bed.runtime]),
        stranger(nats_server.url) as stranger_client,
    ):
        subject = Verb.STATUS.subject(bed.controller.name)
        answer_count = 0

        async def count(_: Msg) -> None:
            nonlocal answer_count
            answer_count += 1

        async with connect(nats_server.url) as watching:
            await watching.client.subscribe("_INBOX.replies", cb=count)
            await eventually(lambda: answers(watching, subject))
            for _ in range(8_000):
                stranger_client.publish(subject.encode(), b"", reply=b"_INBOX.replies")
            await stranger_client.flush()
            async with flooding(stranger_client, subject):
                await sync_once(bed)
                answered_then = answer_count
                await eventually(lambda: answer_count > answered_then)
        await bed.settled()
        assert not breaks(caplog)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [160, pytest.param(23_000, marks=pytest.mark.long)])
async def test_a_flood_of_large_requests_does_not_silence_a_watch(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """The smaller flood is far above what the server keeps for a client, and what is answered."""
    payload, puts = bytes(900_000), 0
    assert count * len(payload) > 2 * SERVER_PENDING
    async with (
        nats_test_bed(nats_server.url) as bed,
        answering(bed.connection, [bed.runtime]),
        stranger(nats_server.url) as stranger_client,
        connect(nats_server.url) as asking,
    ):
        subject = Verb.STATUS.subject(bed.controller.name)
        await eventually(lambda: answers(asking, subject))
        restarts = bed.restarts

        async def flood() -> None:
            for _ in range(count):
                stranger_client.publish(subject.encode(), payload, reply=b"_INBOX.replies")
                await stranger_client.drain()
            await stranger_client.flush()

        flooding_task = asyncio.create_task(flood())
        while not flooding_task.done():
            puts += 1
            await sync_once(bed)
        await flooding_task
        assert puts > 1
        await bed.settled()
        assert (breaks(caplog), bed.restarts) == ([], restarts)
        assert "sync failed" not in caplog.text
        stats = msgspec.json.decode(await ask(asking, "$SRV.STATS.natsctl", timeout_s=60))
        handled = sum(endpoint["num_requests"] for endpoint in stats["endpoints"])
        errors = sum(endpoint["num_errors"] for endpoint in stats["endpoints"])
        print("FLOOD", count, "requests,", puts, "syncs,", handled, "arrived,", errors, "refused")
        assert errors > 0 or "slow consumer" in nats_server.log().lower()


async def answers(connection: Connection, subject: str) -> bool:
    """Return whether a service answers on the subject."""
    try:
        return bool(await ask(connection, subject, timeout_s=2))
    except NoServiceError:  # it hasn't subscribed yet
        return False


async def sync_once(bed: NatsTestBed) -> None:
    """Write a thing, and wait until it is synced."""
    await bed.user.put("k1")
    text = text_of((await bed.admin.entry(THINGS, "k1")).value)
    await eventually(lambda: bed.sights.synced["k1"] == text, every_s=0)


@asynccontextmanager
async def flooding(stranger_client: Stranger, subject: str) -> AsyncIterator[None]:
    """Send requests without a pause during the context."""
    enough = asyncio.Event()

    async def flood() -> None:
        while not enough.is_set():
            for _ in range(1_000):
                stranger_client.publish(subject.encode(), b"", reply=b"_INBOX.replies")
            await stranger_client.flush()

    async with asyncio.TaskGroup() as group:
        group.create_task(flood(), name="flood")
        try:
            yield
        finally:
            enough.set()
