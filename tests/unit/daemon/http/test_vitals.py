"""The liveness checks, readiness checks and metrics of a process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from natsctl import Controller, Object, Operator, StoreError, kv, primary, tertiary
from natsctl.daemon.http import Check, CheckVerdict, Vitals
from natsctl.jetstream.connection import ConnectionState
from natsctl.testing import MemoryStores


class Lamp(Object, frozen=True):
    pass


class Lamps(Controller):
    lamps = primary(kv(Lamp, bucket="lamps"))
    rooms = tertiary(kv(dict, bucket="rooms"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class FakeConnection:
    """A connection whose state the test sets."""

    def __init__(self) -> None:
        self.reconnects = True
        self.connected = True

    def state(self) -> ConnectionState:
        return ConnectionState(
            connected=self.connected,
            server="hub:4222",
            losses=3,
            since_s=1.0,
            errors=5,
            last_error=None if self.connected else "the server closed the connection",
        )


@pytest.fixture
def connection() -> Any:
    return FakeConnection()


@pytest.fixture
def vitals() -> Vitals:
    return Vitals()


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def operator(stores: MemoryStores) -> Operator:
    return Operator([Lamps()], nats=stores)


@pytest.fixture
def watched_vitals(vitals: Vitals, connection: Any, operator: Operator) -> Iterator[Vitals]:
    with vitals.of(connection, operator.runtimes):
        yield vitals


async def test_a_process_without_a_first_connection_is_live_and_not_ready(vitals: Vitals) -> None:
    assert vitals.live().passed
    assert vitals.ready().text() == (
        "[-]nats failed: not connected: the process is starting or stopping\n"
        "[-]controllers failed: no controller is running\n"
        "readyz check failed\n"
    )


async def test_only_a_connection_that_was_given_up_fails_liveness(
    watched_vitals: Vitals, connection: Any
) -> None:
    connection.connected = False
    assert (
        watched_vitals.live().text(verbose=True) == "[+]ping ok\n[+]nats ok\nlivez check passed\n"
    )
    connection.reconnects = False
    assert not watched_vitals.live().passed
    assert "[-]nats failed: the connection was given up" in watched_vitals.live().text()


async def test_a_process_is_ready_while_it_follows_every_cache_until_it_stops(
    watched_vitals: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    vitals = watched_vitals
    opening = "[-]controller/lamps failed: the controller is opening its stores"
    assert opening in vitals.ready().text()
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    assert vitals.ready().text(verbose=True) == (
        "[+]nats ok\n"
        "[+]controller/lamps ok\n"
        "[+]cache/lamps/lamps ok\n"
        "[+]cache/lamps/rooms ok\n"
        "readyz check passed\n"
    )
    stores.store(Lamps.lamps.kind).fail(StoreError("out of order"))
    await asyncio.sleep(60)
    assert "[-]cache/lamps/lamps failed: out of order" in vitals.ready().text()
    stores.store(Lamps.lamps.kind).fail(None)
    await asyncio.sleep(60)
    assert vitals.ready().passed
    vitals.stop()
    assert vitals.ready().text().splitlines()[0] == "[-]shutdown failed: stopping"
    assert vitals.live().passed
    operator.stop()
    await task


async def test_readiness_names_a_cache_that_is_not_synced(
    watched_vitals: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    stores.store(Lamps.rooms.kind).fail(StoreError("rooms are closed"))
    task = asyncio.create_task(operator.run())
    await asyncio.sleep(60)
    assert watched_vitals.ready().text() == (
        "[+]nats ok\n"
        "[+]controller/lamps ok\n"
        "[+]cache/lamps/lamps ok\n"
        "[-]cache/lamps/rooms failed: rooms are closed\n"
        "readyz check failed\n"
    )
    operator.stop()
    await task


def test_the_reason_of_a_failed_check_has_no_secrets() -> None:
    leaking = CheckVerdict("readyz", (Check("nats", "no way to nats://ann:hush@hub"),))
    assert "[-]nats failed: no way to nats://***@hub\n" in leaking.text()
