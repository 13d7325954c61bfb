"""Leader election over a real bucket: its record stays, and its heartbeats expire."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from natsctl import connect
from natsctl.core.coordination.lease import record_key
from natsctl.core.coordination.shares import Participation
from tests.support.clients.nats import Nats
from tests.support.clients.nats_admin import Admin, NoMessage, Refused
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

BUCKET, NAME = "natsctl_leases", "greetings"
RECORD = record_key(NAME)
EXPIRY_S = 60.0  # within which the server deletes an expired heartbeat


@pytest.fixture
async def admin(nats_server: NatsServer) -> AsyncIterator[Admin]:
    async with Admin(nats_server.url) as admin:
        yield admin


@asynccontextmanager
async def taking_part(nats: Nats, *, ttl_s: float = 30.0) -> AsyncIterator[Participation]:
    """Take part in the election without any keys, until the context ends."""
    make = partial(
        Participation, lambda kind: nats.leases(ttl_s=ttl_s, kind=kind), count=1, ttl_s=ttl_s
    )
    participation, ended, synced = make(NAME, ""), asyncio.Event(), asyncio.Event()
    synced.set()

    async def work() -> None:
        await ended.wait()

    task = asyncio.create_task(participation.during(work, synced))
    try:
        yield participation
    finally:
        ended.set()
        await task


async def test_a_stopped_leader_leaves_a_record_that_names_nobody(nats: Nats, admin: Admin) -> None:
    with pytest.raises(Refused):
        await admin.info(BUCKET)
    async with taking_part(nats, ttl_s=1.0) as participation:
        await eventually(lambda: participation.leadership.leads)
        config = (await admin.info(BUCKET))["config"]
        assert (config["max_msgs_per_subject"], config["allow_msg_ttl"]) == (1, True)
    record = msgspec.json.decode((await admin.entry(BUCKET, RECORD)).value)
    assert record["members"] == {}

    async def only_the_record() -> bool:
        try:
            return set(await admin.entries(BUCKET)) == {RECORD}
        except NoMessage:
            return False

    await eventually(only_the_record, within_s=EXPIRY_S)
    async with taking_part(nats) as participation:
        await eventually(lambda: participation.leadership.leads)
        assert participation.leadership.epoch == record["epoch"] + 1


async def test_one_of_many_sessions_leads_and_the_next_takes_over(nats: Nats) -> None:
    async with (
        taking_part(nats) as one,
        taking_part(nats) as two,
    ):
        await eventually(lambda: one.leadership.leads or two.leadership.leads)
        async with taking_part(nats) as three:
            await eventually(lambda: len(three.state().members) == 1)
            assert sum(part.leadership.leads for part in (one, two, three)) == 1


async def test_nobody_is_alarmed_when_the_heartbeat_of_a_session_that_is_over_expires(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "natsctl")
    async with connect(nats_server.url, verify_s=0.5) as nats, taking_part(nats) as one:
        await eventually(lambda: one.leadership.leads)
        async with taking_part(nats, ttl_s=1.0) as two:
            await eventually(lambda: two.state().known)
        again = "watching the leases again"
        await eventually(lambda: again in caplog.text, within_s=EXPIRY_S)
        assert one.leadership.leads
    assert "vanished from" in caplog.text  # what it says to those who ask
    assert "lease out of reach" not in caplog.text
