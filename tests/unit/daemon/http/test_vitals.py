"""A process says whether it lives, whether it is ready, and what it measured."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from natsctl import Controller, Object, StoreError, kv, primary, tertiary
from natsctl.core.coordination.election import ElectionState
from natsctl.core.coordination.sharding import ShardState
from natsctl.daemon.http.vitals import Check, Verdict, Vitals
from natsctl.daemon.operator import Operator, Runnable
from natsctl.jetstream.connection.connection import ConnectionState
from natsctl.testing.memory import MemoryStores


class Lamp(Object, frozen=True):
    pass


class Lamps(Controller):
    lamps = primary(kv(Lamp, bucket="lamps"))
    rooms = tertiary(kv(dict, bucket="rooms"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class Wire:
    """A connection that is as it is told to be."""

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
            last_error=None if self.connected else "the server said goodbye",
        )


class Race:
    """An election that stands as it is told to."""

    def __init__(self) -> None:
        self.known = False
        self.epoch: int | None = None

    def state(self) -> ElectionState:
        return ElectionState(
            name="lamps",
            identity="we",
            holder="they" if self.epoch is None else "we",
            leads=self.epoch is not None,
            epoch=self.epoch,
            known=self.known,
        )


class Plain:
    """Runs, and measures nothing."""

    name = "plain"

    def __init__(self) -> None:
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing still."""


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def vitals() -> Vitals:
    return Vitals()


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def operator(stores: MemoryStores) -> Operator:
    return Operator([Lamps()], nats=stores)


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[None]:
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    yield
    operator.stop()
    await task


@pytest.fixture
def of(vitals: Vitals, wire: Wire, operator: Operator) -> Iterator[Vitals]:
    with vitals.of(wire, operator.runtimes):
        yield vitals


async def numbers(vitals: Vitals) -> dict[str, float]:
    """Return what a scrape shows, as Prometheus would write it."""
    page, _ = await vitals.metrics("")
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


# ---- alive


async def test_a_process_that_is_not_connected_yet_lives_and_is_not_ready(vitals: Vitals) -> None:
    assert vitals.live().passed
    assert vitals.ready().text() == (
        "[-]nats failed: not connected: the process is starting or stopping\n"
        "[-]controllers failed: no controller is running\n"
        "readyz check failed\n"
    )


async def test_a_lost_connection_is_no_reason_to_be_killed_but_one_given_up_is(
    of: Vitals, wire: Wire
) -> None:
    wire.connected = False
    assert of.live().text(verbose=True) == "[+]ping ok\n[+]nats ok\nlivez check passed\n"
    wire.reconnects = False
    assert not of.live().passed
    assert "[-]nats failed: the connection was given up" in of.live().text()


# ---- ready


async def test_a_process_is_ready_when_every_cache_is_complete(
    of: Vitals, operator: Operator
) -> None:
    assert "[-]controller/lamps failed: the controller is opening its stores" in of.ready().text()
    async with running(operator):
        assert of.ready().text(verbose=True) == (
            "[+]nats ok\n"
            "[+]controller/lamps ok\n"
            "[+]cache/lamps/lamps ok\n"
            "[+]cache/lamps/rooms ok\n"
            "readyz check passed\n"
        )


async def test_a_cache_that_is_not_complete_is_named(
    of: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    stores.store(Lamps.rooms.kind).fail(StoreError("rooms are closed"))
    task = asyncio.create_task(operator.run())
    await asyncio.sleep(60)
    assert of.ready().text() == (
        "[+]nats ok\n"
        "[+]controller/lamps ok\n"
        "[+]cache/lamps/lamps ok\n"
        "[-]cache/lamps/rooms failed: rooms are closed\n"
        "readyz check failed\n"
    )
    operator.stop()
    await task


async def test_a_complete_cache_without_a_watch_is_not_ready_until_it_has_one(
    of: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        stores.store(Lamps.lamps.kind).fail(StoreError("out of order"))
        await asyncio.sleep(60)
        assert "[-]cache/lamps/lamps failed: out of order" in of.ready().text()
        stores.store(Lamps.lamps.kind).fail(None)
        await asyncio.sleep(60)
        assert of.ready().passed


async def test_a_process_without_a_connection_is_not_ready(
    of: Vitals, operator: Operator, wire: Wire
) -> None:
    async with running(operator):
        wire.connected = False
        assert (
            "[-]nats failed: not connected to hub:4222: the server said goodbye\n"
            in of.ready().text()
        )


async def test_a_standby_is_ready_as_soon_as_it_is_known_who_leads(
    vitals: Vitals, wire: Wire, operator: Operator
) -> None:
    race = Race()
    with vitals.of(wire, operator.runtimes, [race]):
        async with running(operator):
            assert (
                "[-]lease/lamps failed: the lease was not read or written yet"
                in vitals.ready().text()
            )
            race.known = True
            assert "[+]lease/lamps ok" in vitals.ready().text(verbose=True)
            assert vitals.ready().passed
            race.epoch = 7
            assert vitals.ready().passed


class Member:
    """Shares keys with others, once it has joined."""

    def __init__(self) -> None:
        self.known = self.works = self.moving = False

    def state(self) -> ShardState:
        return ShardState(
            name="lamps",
            identity="me",
            members=("me", "you") if self.works else (),
            works=self.works,
            moving=self.moving,
            known=self.known,
        )


async def test_who_shares_keys_is_ready_when_it_has_joined_the_others(
    vitals: Vitals, wire: Wire, operator: Operator
) -> None:
    member = Member()
    with vitals.of(wire, operator.runtimes, shards=[member]):
        async with running(operator):
            assert "[-]shard/lamps failed: the member record" in vitals.ready().text()
            assert (await numbers(vitals))["natsctl_shard_members{lamps}"] == 0
            member.known = True
            assert "[-]shard/lamps failed: this member has not joined" in vitals.ready().text()
            member.works = member.moving = True
            assert "[+]shard/lamps ok" in vitals.ready().text(verbose=True)
            found = await numbers(vitals)
            assert found["natsctl_shard_members{lamps}"] == 2
            assert found["natsctl_shard_moving{lamps}"] == 1


async def test_what_measures_nothing_is_ready_when_it_has_begun(vitals: Vitals, wire: Wire) -> None:
    plain = Plain()
    runtimes: list[Runnable] = [plain]
    with vitals.of(wire, runtimes):
        assert "[-]controller/plain failed: the controller is starting" in vitals.ready().text()
        plain.synced.set()
        assert vitals.ready().passed
    assert not vitals.ready().passed


async def test_what_was_told_to_stop_is_not_ready_and_lives(of: Vitals, operator: Operator) -> None:
    async with running(operator):
        assert of.ready().passed
        of.stop()
        assert of.ready().text().splitlines()[0] == "[-]shutdown failed: stopping"
        assert of.live().passed


# ---- metrics


async def test_a_scrape_shows_syncs_queues_and_caches(
    of: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        lamps = stores.store(Lamps.lamps.kind)
        await lamps.create("hall", b"{}")
        await lamps.create("attic", b"no lamp")
        await asyncio.sleep(60)
        found = await numbers(of)
    assert found["controller_runtime_reconcile_total{lamps,success}"] == 1
    assert found["controller_runtime_reconcile_total{lamps,error}"] == 0
    assert found["controller_runtime_reconcile_time_seconds_count{lamps}"] == 1
    assert found["controller_runtime_max_concurrent_reconciles{lamps}"] == 4
    assert found["controller_runtime_active_workers{lamps}"] == 0
    assert found["workqueue_adds_total{lamps,lamps}"] == 1
    assert found["workqueue_depth{lamps,lamps}"] == 0
    assert found["workqueue_queue_duration_seconds_count{lamps,lamps}"] == 1
    assert found["natsctl_cache_objects{lamps,Lamp.lamps,lamps}"] == 1
    assert found["natsctl_invalid_objects{lamps,Lamp.lamps,lamps}"] == 1
    assert found["natsctl_cache_revision{lamps,Lamp.lamps,lamps}"] == 2
    assert found["natsctl_cache_lag_revisions{lamps,Lamp.lamps,lamps}"] == 0
    assert found["natsctl_watch_up{lamps,dict.rooms,rooms}"] == 1
    assert found["natsctl_convergence_seconds_count{lamps}"] == 1
    assert found["natsctl_orphans{lamps}"] == 0
    assert found["natsctl_applies_undone_total{lamps}"] == 0
    assert found["natsctl_contested_keys{lamps}"] == 0
    assert found["natsctl_controller_synced{lamps}"] == 1


async def test_a_scrape_shows_the_connection_and_who_leads(
    vitals: Vitals, wire: Wire, operator: Operator
) -> None:
    assert "natsctl_connection_up{}" not in await numbers(vitals)
    race = Race()
    with vitals.of(wire, operator.runtimes, [race]):
        assert (await numbers(vitals))["leader_election_master_status{lamps}"] == 0
        assert "natsctl_lease_epoch{lamps}" not in await numbers(vitals)
        race.known, race.epoch = True, 7
        found = await numbers(vitals)
        assert found["natsctl_connection_up{}"] == 1
        assert found["natsctl_connection_losses_total{}"] == 3
        assert found["natsctl_connection_errors_total{}"] == 5
        assert found["leader_election_master_status{lamps}"] == 1
        assert found["natsctl_lease_epoch{lamps}"] == 7
        wire.connected = False
        assert (await numbers(vitals))["natsctl_connection_up{}"] == 0


async def test_a_lag_that_is_not_known_is_left_out_of_a_scrape(
    of: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        stores.store(Lamps.rooms.kind).fail(StoreError("rooms are closed"))
        found = await numbers(of)
        assert found["natsctl_cache_lag_revisions{lamps,Lamp.lamps,lamps}"] == 0
        assert "natsctl_cache_lag_revisions{lamps,dict.rooms,rooms}" not in found


class Cluster:
    """Was sent a few requests."""

    def requests(self) -> dict[tuple[str, ...], int]:
        return {("200", "GET", "lab:6443"): 5, ("<error>", "PATCH", "lab:6443"): 1}


async def test_a_scrape_shows_what_a_cluster_was_asked(vitals: Vitals, wire: Wire) -> None:
    with vitals.of(wire, (), (), Cluster()):
        found = await numbers(vitals)
    assert found["rest_client_requests_total{200,lab:6443,GET}"] == 5
    assert found["rest_client_requests_total{<error>,lab:6443,PATCH}"] == 1


WELL = Verdict("readyz", (Check("nats"), Check("cache")))
ILL = Verdict("readyz", (Check("nats"), Check("cache", "not listed\n  yet")))


def test_all_is_well_where_no_check_fails() -> None:
    assert WELL.passed
    assert WELL.text() == "ok"


def test_why_a_check_fails_is_told_without_secrets() -> None:
    leaking = Verdict("readyz", (Check("nats", "no way to nats://ann:hush@hub"),))
    assert "[-]nats failed: no way to nats://***@hub\n" in leaking.text()


def test_each_check_has_a_line_where_that_is_asked_for() -> None:
    assert WELL.text(verbose=True) == "[+]nats ok\n[+]cache ok\nreadyz check passed\n"


def test_one_check_that_fails_is_enough_and_its_reason_is_told_unasked_on_one_line() -> None:
    assert not ILL.passed
    told = "[+]nats ok\n[-]cache failed: not listed yet\nreadyz check failed\n"
    assert ILL.text() == told
    assert ILL.text(verbose=True) == told
