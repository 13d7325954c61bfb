"""The liveness checks, readiness checks and metrics of a process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from natsctl import Controller, Object, Operator, StoreError, kv, primary, tertiary
from natsctl.core.coordination.shares import ShareState
from natsctl.daemon.http import Check, CheckVerdict, Vitals
from natsctl.daemon.operator import Runnable
from natsctl.jetstream.connection import ConnectionState
from natsctl.telemetry.histogram import Distribution
from natsctl.telemetry.metrics import exposition
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


class FakeElection:
    """An election whose state the test sets."""

    def __init__(self) -> None:
        self.known = False
        self.epoch: int | None = None

    def state(self) -> ShareState:
        leads = self.epoch is not None
        return ShareState(
            name="lamps",
            identity="we",
            count=1,
            works=leads,
            epoch=self.epoch,
            shares={"we" if leads else "they": 1},
            draining=0,
            draining_s=0.0,
            moving=False,
            known=self.known,
        )


class Unmeasured:
    """A runnable without metrics."""

    name = "plain"

    def __init__(self) -> None:
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


@pytest.fixture
def connection() -> FakeConnection:
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


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[None]:
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    yield
    operator.stop()
    await task


@pytest.fixture
def watched_vitals(
    vitals: Vitals, connection: FakeConnection, operator: Operator
) -> Iterator[Vitals]:
    with vitals.of(connection, operator.runtimes):
        yield vitals


async def numbers(vitals: Vitals) -> dict[str, float]:
    """Return the samples of a scrape by `name{labels}`."""
    page, _ = exposition(await vitals.metrics())
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


# ---- alive


async def test_a_process_without_a_first_connection_is_live_and_not_ready(vitals: Vitals) -> None:
    assert vitals.live().passed
    assert vitals.ready().text() == (
        "[-]nats failed: not connected: the process is starting or stopping\n"
        "[-]controllers failed: no controller is running\n"
        "readyz check failed\n"
    )


async def test_only_a_connection_that_was_given_up_fails_liveness(
    watched_vitals: Vitals, connection: FakeConnection
) -> None:
    connection.connected = False
    assert (
        watched_vitals.live().text(verbose=True) == "[+]ping ok\n[+]nats ok\nlivez check passed\n"
    )
    connection.reconnects = False
    assert not watched_vitals.live().passed
    assert "[-]nats failed: the connection was given up" in watched_vitals.live().text()


# ---- ready


async def test_a_process_is_ready_when_every_cache_is_synced(
    watched_vitals: Vitals, operator: Operator
) -> None:
    assert (
        "[-]controller/lamps failed: the controller is opening its stores"
        in watched_vitals.ready().text()
    )
    async with running(operator):
        assert watched_vitals.ready().text(verbose=True) == (
            "[+]nats ok\n"
            "[+]controller/lamps ok\n"
            "[+]cache/lamps/lamps ok\n"
            "[+]cache/lamps/rooms ok\n"
            "readyz check passed\n"
        )


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


async def test_a_synced_cache_is_not_ready_while_its_watch_is_broken(
    watched_vitals: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        stores.store(Lamps.lamps.kind).fail(StoreError("out of order"))
        await asyncio.sleep(60)
        assert "[-]cache/lamps/lamps failed: out of order" in watched_vitals.ready().text()
        stores.store(Lamps.lamps.kind).fail(None)
        await asyncio.sleep(60)
        assert watched_vitals.ready().passed


async def test_a_process_without_a_connection_is_not_ready(
    watched_vitals: Vitals, operator: Operator, connection: FakeConnection
) -> None:
    async with running(operator):
        connection.connected = False
        assert (
            "[-]nats failed: not connected to hub:4222: the server closed the connection\n"
            in watched_vitals.ready().text()
        )


async def test_a_standby_is_ready_after_it_read_the_lease(
    vitals: Vitals, connection: FakeConnection, operator: Operator
) -> None:
    election = FakeElection()
    with vitals.of(connection, operator.runtimes, [election]):
        async with running(operator):
            assert (
                "[-]lease/lamps failed: the lease was not read or written yet"
                in vitals.ready().text()
            )
            election.known = True
            assert "[+]lease/lamps ok" in vitals.ready().text(verbose=True)
            assert vitals.ready().passed
            election.epoch = 7
            assert vitals.ready().passed


class FakeMember:
    """A shard member whose state the test sets."""

    def __init__(self) -> None:
        self.known = self.works = self.moving = False

    def state(self) -> ShareState:
        return ShareState(
            name="lamps",
            identity="me",
            count=256,
            works=self.works,
            epoch=7 if self.works else None,
            shares={"me": 128, "you": 128} if self.works else {},
            draining=3 if self.moving else 0,
            draining_s=2.0 if self.moving else 0.0,
            moving=self.moving,
            known=self.known,
        )


async def test_a_shard_member_is_ready_after_it_joined(
    vitals: Vitals, connection: FakeConnection, operator: Operator
) -> None:
    member = FakeMember()
    with vitals.of(connection, operator.runtimes, [member]):
        async with running(operator):
            assert "[-]shard/lamps failed: the lease was not" in vitals.ready().text()
            assert (await numbers(vitals))["natsctl_shard_members{lamps}"] == 0
            member.known = True
            assert "[-]shard/lamps failed: this process has no shares" in vitals.ready().text()
            member.works = member.moving = True
            assert "[+]shard/lamps ok" in vitals.ready().text(verbose=True)
            samples = await numbers(vitals)
            assert samples["natsctl_shard_members{lamps}"] == 2
            assert samples["natsctl_shard_moving{lamps}"] == 1


async def test_a_runnable_without_metrics_is_ready_when_it_is_synced(
    vitals: Vitals, connection: FakeConnection
) -> None:
    plain = Unmeasured()
    runtimes: list[Runnable] = [plain]
    with vitals.of(connection, runtimes):
        assert "[-]controller/plain failed: the controller is starting" in vitals.ready().text()
        plain.synced.set()
        assert vitals.ready().passed
    assert not vitals.ready().passed


async def test_a_stopping_process_is_live_and_not_ready(
    watched_vitals: Vitals, operator: Operator
) -> None:
    async with running(operator):
        assert watched_vitals.ready().passed
        watched_vitals.stop()
        assert watched_vitals.ready().text().splitlines()[0] == "[-]shutdown failed: stopping"
        assert watched_vitals.live().passed


# ---- metrics


async def test_a_scrape_shows_syncs_queues_and_caches(
    watched_vitals: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        lamps = stores.store(Lamps.lamps.kind)
        await lamps.create("hall", b"{}")
        await lamps.create("attic", b"no lamp")
        await asyncio.sleep(60)
        samples = await numbers(watched_vitals)
    assert samples["controller_runtime_reconcile_total{lamps,success}"] == 1
    assert samples["controller_runtime_reconcile_total{lamps,error}"] == 0
    assert samples["controller_runtime_reconcile_time_seconds_count{lamps}"] == 1
    assert samples["controller_runtime_max_concurrent_reconciles{lamps}"] == 4
    assert samples["controller_runtime_active_workers{lamps}"] == 0
    assert samples["workqueue_adds_total{lamps,lamps}"] == 1
    assert samples["workqueue_depth{lamps,lamps}"] == 0
    assert samples["workqueue_queue_duration_seconds_count{lamps,lamps}"] == 1
    assert samples["natsctl_cache_objects{lamps,Lamp.lamps,lamps}"] == 1
    assert samples["natsctl_invalid_objects{lamps,Lamp.lamps,lamps}"] == 1
    assert samples["natsctl_cache_revision{lamps,Lamp.lamps,lamps}"] == 2
    assert samples["natsctl_cache_lag_revisions{lamps,Lamp.lamps,lamps}"] == 0
    assert samples["natsctl_watch_up{lamps,dict.rooms,rooms}"] == 1
    assert samples["natsctl_convergence_seconds_count{lamps}"] == 1
    assert samples["natsctl_orphans{lamps}"] == 0
    assert samples["natsctl_applies_undone_total{lamps}"] == 0
    assert samples["natsctl_contested_keys{lamps}"] == 0
    assert samples["natsctl_controller_synced{lamps}"] == 1


async def test_a_scrape_shows_the_connection_and_the_leader(
    vitals: Vitals, connection: FakeConnection, operator: Operator
) -> None:
    assert "natsctl_connection_up{}" not in await numbers(vitals)
    election = FakeElection()
    with vitals.of(connection, operator.runtimes, [election]):
        assert (await numbers(vitals))["leader_election_master_status{lamps}"] == 0
        assert "natsctl_lease_epoch{lamps}" not in await numbers(vitals)
        election.known, election.epoch = True, 7
        samples = await numbers(vitals)
        assert samples["natsctl_connection_up{}"] == 1
        assert samples["natsctl_connection_losses_total{}"] == 3
        assert samples["natsctl_connection_errors_total{}"] == 5
        assert samples["leader_election_master_status{lamps}"] == 1
        assert samples["natsctl_lease_epoch{lamps}"] == 7
        connection.connected = False
        assert (await numbers(vitals))["natsctl_connection_up{}"] == 0


async def test_a_scrape_omits_an_unknown_lag(
    watched_vitals: Vitals, operator: Operator, stores: MemoryStores
) -> None:
    async with running(operator):
        stores.store(Lamps.rooms.kind).fail(StoreError("rooms are closed"))
        samples = await numbers(watched_vitals)
        assert samples["natsctl_cache_lag_revisions{lamps,Lamp.lamps,lamps}"] == 0
        assert "natsctl_cache_lag_revisions{lamps,dict.rooms,rooms}" not in samples


class FakeCluster:
    """A cluster that received a few requests."""

    def requests(self) -> dict[tuple[str, ...], int]:
        return {("200", "GET", "lab:6443"): 5, ("<error>", "PATCH", "lab:6443"): 1}

    def times(self) -> dict[tuple[str, ...], Distribution]:
        return {("GET", "lab:6443"): Distribution((1.0,), (4, 1), 3.5)}


async def test_a_scrape_shows_the_requests_to_a_cluster(
    vitals: Vitals, connection: FakeConnection
) -> None:
    with vitals.of(connection, (), cluster=FakeCluster()):
        samples = await numbers(vitals)
    assert samples["rest_client_requests_total{200,lab:6443,GET}"] == 5
    assert samples["rest_client_requests_total{<error>,lab:6443,PATCH}"] == 1
    assert samples["rest_client_request_duration_seconds_bucket{lab:6443,1.0,GET}"] == 4
    assert samples["rest_client_request_duration_seconds_count{lab:6443,GET}"] == 5


PASSED = CheckVerdict("readyz", (Check("nats"), Check("cache")))
FAILED = CheckVerdict("readyz", (Check("nats"), Check("cache", "not listed\n  yet")))


def test_a_verdict_without_failed_checks_is_ok() -> None:
    assert PASSED.passed
    assert PASSED.text() == "ok"


def test_the_reason_of_a_failed_check_has_no_secrets() -> None:
    leaking = CheckVerdict("readyz", (Check("nats", "no way to nats://ann:hush@hub"),))
    assert "[-]nats failed: no way to nats://***@hub\n" in leaking.text()


def test_a_verbose_verdict_has_a_line_for_each_check() -> None:
    assert PASSED.text(verbose=True) == "[+]nats ok\n[+]cache ok\nreadyz check passed\n"


def test_one_failed_check_fails_the_verdict_with_its_reason_on_one_line() -> None:
    assert not FAILED.passed
    text = "[+]nats ok\n[-]cache failed: not listed yet\nreadyz check failed\n"
    assert FAILED.text() == text
    assert FAILED.text(verbose=True) == text
