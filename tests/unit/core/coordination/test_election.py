"""Leader election: one process leads a controller, the others stand by with synced caches."""

import asyncio
import random
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from natsctl import (
    Controller,
    Kind,
    NotFoundError,
    Object,
    Operator,
    StoreError,
    kv,
    primary,
    secondary,
)
from natsctl.core.coordination.election import Election, ElectionState, elections
from natsctl.core.coordination.lease import Claim
from natsctl.core.coordination.own_record import STEP_DOWN, TAKE_OVER
from natsctl.core.coordination.participant import steady
from natsctl.errors import NotLeadingError, UsageError
from natsctl.model.store import Store, Stored
from natsctl.testing import MemoryStore, MemoryStores, VirtualTimeLoop
from tests.support.eventually import eventually

TTL_S = 10.0
LEASES = kv(Claim, bucket="leases", history=1)


class AppSpec(msgspec.Struct, frozen=True):
    text: str = "hi"


class App(Object, frozen=True):
    spec: AppSpec


class Part(App, frozen=True):
    pass


class WorkLog:
    """The work of all processes: keys in work and finished syncs."""

    def __init__(self) -> None:
        self.holders: dict[str, str] = {}
        self.resumed: list[str] = []  # the members that continued after their pause
        self.done: list[tuple[str, str]] = []  # the member and the key

    def by(self, member: str) -> list[str]:
        return [key for name, key in self.done if name == member]


class Apps(Controller):
    """Pauses in each sync and fails if another process works on the same key."""

    name = "apps"
    apps = primary(kv(App, bucket="apps"))
    parts = secondary(kv(Part, bucket="parts"))
    resync_s = 1e6

    def __init__(self, member: str, work: WorkLog, *, pause_s: float = 1.0) -> None:
        self.member, self.work, self.pause_s = member, work, pause_s
        self.linger_s = 0.0  # the pause after each sync
        self.started = self.cleaned = self.gc_cycles = 0

    async def start(self) -> None:
        self.started += 1

    async def clean(self) -> None:
        self.cleaned += 1

    async def garbage_secondaries(self) -> None:
        self.gc_cycles += 1
        await super().garbage_secondaries()

    async def sync_handler(self, key: str) -> float | None:
        assert key not in self.work.holders, (
            f"{self.member} and {self.work.holders[key]} are both at {key}"
        )
        self.work.holders[key] = self.member
        try:
            await asyncio.sleep(self.pause_s)
            self.work.resumed.append(self.member)
            app = self.apps.get(key)
            if app is not None:
                await self.parts.apply(key, Part(spec=app.spec))
            self.work.done.append((self.member, key))
        finally:
            try:
                await asyncio.sleep(self.linger_s)
            finally:
                del self.work.holders[key]
        return None


class LeaseConnection:
    """A store of leases whose connection can be cut."""

    def __init__(self, store: Store) -> None:
        self.kind: Kind[object] = store.kind
        self.cut = False
        self.silent = False  # whether no request is answered
        self._store = store

    async def get(self, key: str) -> Stored:
        self._check()
        if self.silent:
            await asyncio.Event().wait()
        return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> Stored:
        self._check()
        return await self._store.create(key, value)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        self._check()
        return await self._store.update(key, value, revision=revision)

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._check()
        return await self._store.delete(key, revision=revision, uid=uid, purge=purge)

    history = watch = None

    def _check(self) -> None:
        if self.cut:
            raise StoreError("the connection is cut")


def election_of(operator: Operator) -> Election:
    election = operator.participations["apps"]
    assert isinstance(election, Election)
    return election


class Process:
    """One of several processes that run the same controller."""

    def __init__(
        self, member: str, stores: MemoryStores, work: WorkLog, *, pause_s: float = 1
    ) -> None:
        loop_time = asyncio.get_running_loop().time
        self.slept_s = 0.0  # suspended time, which the clock of the loop does not count

        def clock() -> float:
            return loop_time() + self.slept_s

        self.controller = Apps(member, work, pause_s=pause_s)
        self.connection = LeaseConnection(stores.store(LEASES))
        make = elections(self.connection, ttl_s=TTL_S, clock=clock)  # type: ignore[arg-type]  # see LeaseConnection
        self.operator = Operator([self.controller], nats=stores, election=make)
        self.task = asyncio.create_task(self.operator.run())

    @property
    def election(self) -> Election:
        return election_of(self.operator)

    @property
    def leads(self) -> bool:
        return self.election.state().leads

    async def stop(self) -> None:
        self.operator.stop()
        await self.task


class Cluster:
    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.work = WorkLog()
        self.apps = self.stores.store(Apps.apps.kind)
        self.processes: list[Process] = []

    async def put(self, *keys: str, text: str = "hi") -> None:
        value = msgspec.json.encode({"spec": {"text": text}})
        for key in keys:
            try:
                revision = (await self.apps.get(key)).revision
            except NotFoundError:
                await self.apps.create(key, value)
            else:
                await self.apps.update(key, value, revision=revision)

    async def process(self, member: str, *, pause_s: float = 1.0) -> Process:
        """Start one more process and wait until it leads or stands by."""
        process = Process(member, self.stores, self.work, pause_s=pause_s)
        self.processes.append(process)
        await process.operator.synced.wait()
        await asyncio.sleep(0.01)
        return process


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for process in cluster.processes:
        if not process.task.done():
            await process.stop()


async def test_one_process_works_and_the_other_stands_by_with_synced_caches(
    cluster: Cluster,
) -> None:
    await cluster.put("a", "b")
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(5)
    assert set(cluster.work.done) == {("one", "a"), ("one", "b")}
    assert other_process.controller.apps.items().keys() == {"a", "b"}
    assert (process.leads, other_process.leads) == (True, False)
    assert (process.controller.started, other_process.controller.started) == (1, 0)


async def test_a_stopped_leader_hands_over_at_once(cluster: Cluster) -> None:
    await cluster.put("a", "b")
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(5)
    await process.stop()
    stopped = asyncio.get_running_loop().time()
    await eventually(lambda: other_process.leads, every_s=0.05)
    assert asyncio.get_running_loop().time() - stopped <= TTL_S / 10
    await asyncio.sleep(3)
    assert set(cluster.work.by("two")) == {"a", "b"}
    assert process.controller.cleaned == 1


async def claim(cluster: Cluster) -> Claim:
    return msgspec.json.decode((await cluster.stores.store(LEASES).get("apps")).value, type=Claim)


async def test_a_stopped_leader_releases_the_lease(cluster: Cluster) -> None:
    process = await cluster.process("one")
    await process.stop()
    assert (await claim(cluster)).released
    assert not process.leads


async def test_a_leader_that_cannot_renew_steps_down_and_logs_the_reason(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.put("a")
    process = await cluster.process("one", pause_s=1000)
    await asyncio.sleep(1)
    assert cluster.work.holders == {"a": "one"}
    process.connection.cut = True
    await asyncio.sleep(STEP_DOWN * TTL_S + 0.1)
    assert cluster.work.holders == {}
    assert not process.task.done()
    assert "lost leadership reason='the lease could not be renewed in time'" in caplog.text
    assert "the connection is cut" in caplog.text


async def test_another_process_leads_within_the_time_to_live_of_a_disconnected_leader(
    cluster: Cluster,
) -> None:
    await cluster.put("a")
    process, other_process = (
        await cluster.process("one", pause_s=1000),
        await cluster.process("two"),
    )
    await asyncio.sleep(5)
    process.connection.cut = True
    await asyncio.sleep(TTL_S)
    assert (process.leads, other_process.leads) == (False, True)
    await asyncio.sleep(2)
    assert set(cluster.work.done) == {("two", "a")}


async def test_a_reconnected_process_stands_by_and_works_when_it_leads_again(
    cluster: Cluster,
) -> None:
    await cluster.put("a", "b")
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(5)
    process.connection.cut = True
    await asyncio.sleep(TTL_S)
    process.connection.cut = False
    await asyncio.sleep(TTL_S)
    assert (process.leads, other_process.leads) == (False, True)
    cluster.work.done.clear()
    await other_process.stop()
    await asyncio.sleep(3)
    assert process.leads
    assert set(cluster.work.by("one")) == {"a", "b"}
    assert process.controller.started == 1


async def test_an_expired_lease_is_taken_with_another_epoch(cluster: Cluster) -> None:
    process = await cluster.process("one")
    first_epoch = process.election.state().epoch
    process.connection.cut = True
    await asyncio.sleep(3 * TTL_S)
    process.connection.cut = False
    await asyncio.sleep(TTL_S)
    next_epoch = process.election.state().epoch
    assert first_epoch is not None
    assert next_epoch is not None
    assert next_epoch > first_epoch


async def test_a_process_with_unfinished_work_of_a_term_begins_no_other_term(
    cluster: Cluster,
) -> None:
    await cluster.put("a")
    process = await cluster.process("one", pause_s=1000)
    process.controller.linger_s = 4 * TTL_S
    await asyncio.sleep(1)
    process.connection.cut = True
    await asyncio.sleep(TTL_S)
    process.connection.cut = False
    await asyncio.sleep(2 * TTL_S)
    assert cluster.work.holders == {"a": "one"}
    assert not process.leads
    await asyncio.sleep(2 * TTL_S)
    assert process.leads


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.4, 2.1, 2.9])
async def test_another_process_leads_in_time_after_the_leader_dies(
    cluster: Cluster, after_s: float
) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(20 + after_s)
    process.connection.cut = True
    await asyncio.sleep(TTL_S)
    assert other_process.leads


async def test_a_lost_lease_never_has_two_leaders(cluster: Cluster) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(5)
    assert other_process.election.state().holder == process.election.state().identity
    cluster.stores.store(LEASES).vanish("apps")
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert not (process.leads and other_process.leads)
    assert process.leads or other_process.leads


async def test_a_short_disconnection_has_no_effect(cluster: Cluster) -> None:
    await cluster.put("a")
    process = await cluster.process("one", pause_s=TTL_S)
    epoch = process.election.state().epoch
    process.connection.cut = True
    await asyncio.sleep(STEP_DOWN * TTL_S / 2)
    process.connection.cut = False
    await asyncio.sleep(TTL_S)
    assert process.election.state().epoch == epoch
    assert set(cluster.work.done) == {("one", "a")}


async def test_a_suspended_process_continues_no_sync(cluster: Cluster) -> None:
    await cluster.put("a")
    process = await cluster.process("one", pause_s=2.0)
    await asyncio.sleep(1)
    assert cluster.work.holders == {"a": "one"}
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(TTL_S * 0.85)  # as after SIGSTOP: every timer is due
    for _ in range(20):
        await asyncio.sleep(0)
    assert cluster.work.resumed == []
    await asyncio.sleep(5)
    assert process.leads
    assert set(cluster.work.done) == {
        ("one", "a")
    }  # it leads again, since no other process took the lease


async def test_a_process_whose_machine_slept_works_in_another_term(cluster: Cluster) -> None:
    keys = [f"k{number}" for number in range(8)]
    process = await cluster.process("one")
    first_epoch = process.election.state().epoch
    assert first_epoch is not None
    process.slept_s = 100 * TTL_S
    await cluster.put(*keys)
    await asyncio.sleep(TTL_S)
    next_epoch = process.election.state().epoch
    assert next_epoch is not None
    assert next_epoch > first_epoch
    assert set(cluster.work.by("one")) == set(keys)


async def test_a_task_left_by_a_sync_writes_nothing_after_the_term(cluster: Cluster) -> None:
    refused: list[Exception] = []
    leaked: list[asyncio.Task[None]] = []

    class Leaking(Apps):
        async def sync_handler(self, key: str) -> float | None:
            async def write() -> None:
                await asyncio.sleep(TTL_S * 0.85)
                try:
                    await self.parts.apply(key, Part(spec=AppSpec()))
                except NotLeadingError as error:
                    refused.append(error)

            leaked.append(asyncio.create_task(write()))
            return None

    await cluster.put("a")
    store = LeaseConnection(cluster.stores.store(LEASES))
    clock = asyncio.get_running_loop().time
    make = elections(store, ttl_s=TTL_S, clock=clock)  # type: ignore[arg-type]  # see LeaseConnection
    operator = Operator([Leaking("one", cluster.work)], nats=cluster.stores, election=make)
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    await eventually(lambda: leaked)
    store.cut = True
    await asyncio.wait(leaked)
    assert [str(error) for error in refused] == [
        "leaking is not led by this process: nothing is written"
    ]
    assert cluster.stores.store(Apps.parts.kind).keys() == []
    operator.stop()
    await task


async def test_a_stop_finishes_running_syncs_before_another_process_leads(cluster: Cluster) -> None:
    await cluster.put("a")
    process, other_process = (
        await cluster.process("one", pause_s=TTL_S * 2),
        await cluster.process("two"),
    )
    await asyncio.sleep(1)
    await process.stop()
    assert set(cluster.work.done) == {("one", "a")}
    await asyncio.sleep(TTL_S)
    assert set(cluster.work.by("two")) == {"a"}
    assert other_process.leads


async def test_a_cancelled_leader_keeps_the_lease_until_its_work_has_ended(
    cluster: Cluster,
) -> None:
    await cluster.put("a")
    process = await cluster.process("one", pause_s=1000)
    process.controller.linger_s = 1.0
    await asyncio.sleep(1)
    stopping = asyncio.create_task(process.stop())

    async def released() -> bool:
        return (await claim(cluster)).released

    await eventually(released, within_s=100)
    assert cluster.work.holders == {}
    await stopping
    assert process.task.done()


async def test_a_standby_stops_at_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.process("one")
    other_process = await cluster.process("two")
    other_process.connection.cut = True
    before = asyncio.get_running_loop().time()
    await other_process.stop()
    assert asyncio.get_running_loop().time() == before
    assert other_process.controller.cleaned == 1
    assert "left to expire" not in caplog.text


async def test_the_state_of_an_election_names_the_leader(cluster: Cluster) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    state, other_state = process.election.state(), other_process.election.state()
    assert state == ElectionState("apps", state.identity, state.identity, True, state.epoch, True)
    assert other_state == ElectionState(
        "apps", other_state.identity, state.identity, False, None, True
    )
    other_process.connection.cut = True
    await asyncio.sleep(TTL_S)
    assert not other_process.election.state().known


async def test_a_process_that_has_not_read_the_lease_does_not_know_the_leader() -> None:
    election = elections(MemoryStores().store(LEASES), ttl_s=TTL_S)("apps", "")
    state = election.state()
    assert state == ElectionState("apps", state.identity, None, False, None, False)


async def test_a_leader_that_steps_down_reports_no_term_while_its_writes_end(
    cluster: Cluster,
) -> None:
    process = await cluster.process("one")
    process.connection.cut = True
    await eventually(lambda: not process.election.state().leads, every_s=0.01)
    state, leadership = process.election.state(), process.election.leadership
    assert (state.epoch, leadership.leads) == (None, True)


async def test_a_process_whose_machine_slept_reports_no_term_at_once(cluster: Cluster) -> None:
    process = await cluster.process("one")
    process.slept_s = TTL_S
    state = process.election.state()
    assert (state.leads, state.epoch) == (False, None)


async def test_a_standby_logs_the_leader_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    process = await cluster.process("one")
    await cluster.process("two")
    await asyncio.sleep(TTL_S)
    leader = process.election.state().identity
    assert caplog.text.count(f"standing by reason='{leader} leads'") == 1


async def test_a_standby_whose_request_is_not_answered_leads_soon_after_it_is_reconnected(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    other_process.connection.silent = True
    await process.stop()
    await asyncio.sleep(TTL_S)
    assert "record out of reach record=lease error='no answer in time'" in caplog.text
    other_process.connection.silent = False
    await asyncio.sleep(0.8 * TTL_S)
    assert other_process.leads


async def test_a_first_process_waits_for_the_leader_of_a_lost_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    asked_names: list[str] = []

    async def vacant(name: str) -> bool:
        asked_names.append(name)
        return False

    make = elections(
        MemoryStores().store(LEASES),
        ttl_s=TTL_S,
        clock=asyncio.get_running_loop().time,
        vacant=vacant,
    )
    operator = Operator([Apps("one", WorkLog())], nats=MemoryStores(), election=make)
    task = asyncio.create_task(operator.run())
    await asyncio.sleep(TAKE_OVER * TTL_S - 0.1)
    assert not election_of(operator).state().leads
    await asyncio.sleep(0.2)
    assert election_of(operator).state().leads
    assert asked_names == ["apps"]
    assert caplog.text.count("standing by reason='the lease was deleted, and its holder still") == 1
    operator.stop()
    await task


async def test_a_standby_reads_no_members_while_another_process_leads(cluster: Cluster) -> None:
    await cluster.process("one")
    reads: list[str] = []

    async def sharing(name: str) -> list[str]:
        reads.append(name)
        return []

    clock = asyncio.get_running_loop().time
    make = elections(cluster.stores.store(LEASES), ttl_s=TTL_S, clock=clock, sharing=sharing)
    operator = Operator([Apps("two", cluster.work)], nats=cluster.stores, election=make)
    task = asyncio.create_task(operator.run())
    await asyncio.sleep(TTL_S)
    assert reads == []
    operator.stop()
    await task


async def test_only_the_leader_collects_garbage(cluster: Cluster) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(100)
    assert process.controller.gc_cycles > 2
    assert other_process.controller.gc_cycles == 0
    process.connection.cut = True
    await asyncio.sleep(TTL_S)
    before = process.controller.gc_cycles
    await asyncio.sleep(100)
    assert process.controller.gc_cycles == before
    assert other_process.controller.gc_cycles > 2


async def test_only_the_leader_records_events(cluster: Cluster) -> None:
    await cluster.put("a")
    await cluster.process("one")
    await cluster.process("two")
    await asyncio.sleep(1)
    await cluster.apps.create("bad", b"no json")
    await asyncio.sleep(5)
    assert len([event for event in cluster.stores.events.events if event.key == "bad"]) == 1


@pytest.mark.parametrize("seed", range(20))
async def test_no_key_has_two_workers_under_random_disconnections(
    cluster: Cluster, seed: int
) -> None:
    rng = random.Random(seed)
    keys = [f"k{number}" for number in range(8)]
    await cluster.put(*keys)
    processes = [await cluster.process(f"p{number}", pause_s=0.7) for number in range(3)]
    for step in range(40):
        rng.choice(processes).connection.cut = rng.random() < 0.5
        await cluster.put(rng.choice(keys), text=str(step))
        await asyncio.sleep(rng.uniform(0, TTL_S))
        assert sum(process.leads for process in processes) <= 1
    for process in processes:
        process.connection.cut = False
    await asyncio.sleep(2 * TTL_S)
    assert sum(process.leads for process in processes) == 1
    assert not any(process.task.done() for process in processes)
    assert len({member for member, _ in cluster.work.done}) > 1
    for key in keys:
        text = (await cluster.apps.get(key)).value
        part = msgspec.json.decode((await cluster.stores.store(Apps.parts.kind).get(key)).value)
        assert part["spec"] == msgspec.json.decode(text)["spec"]


@pytest.mark.parametrize("seed", range(20))
async def test_random_changes_of_the_lease_never_give_two_leaders(
    cluster: Cluster, seed: int
) -> None:
    rng, leases = random.Random(seed), cluster.stores.store(LEASES)
    processes = [await cluster.process(f"p{number}") for number in range(3)]
    await cluster.put("a", "b", "c")
    for _ in range(40):
        await tamper(rng, leases)
        if rng.random() < 0.2:
            rng.choice(processes).connection.cut = rng.random() < 0.5
        if rng.random() < 0.1:
            rng.shuffle(processes)
            await processes.pop().stop()
            processes.append(await cluster.process("new"))
        for _ in range(rng.randint(1, 150)):
            await asyncio.sleep(TTL_S / 100)
            assert sum(process.leads for process in cluster.processes) <= 1
    for process in processes:
        process.connection.cut = False
    await asyncio.sleep(3 * TTL_S)
    assert sum(process.leads for process in processes) == 1


async def tamper(rng: random.Random, leases: MemoryStore) -> None:
    """Delete or overwrite the lease at random, as a person could."""
    key = "apps"
    values = [b"?", b"{}", b'{"holder": "x", "since": "", "ttlS": 0}']
    values += [b'{"holder": "x", "since": "", "ttlS": %s}' % ttl for ttl in (b"-1", b"1e300", b"1")]
    match rng.choice(("delete", "purge", "write", "write", "nothing", "nothing")):
        case "write" if leases.keys():
            revision = (await leases.get(key)).revision
            await leases.update(key, rng.choice(values), revision=revision)
        case "delete" | "purge" as method if leases.keys():
            await leases.delete(key, purge=method == "purge")
        case _:
            pass


async def test_a_lease_deleted_by_hand_stays_with_its_leader(cluster: Cluster) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    epoch = process.election.state().epoch
    await asyncio.sleep(5)
    await cluster.stores.store(LEASES).delete("apps")
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert process.leads
        assert not other_process.leads
    assert process.election.state().epoch == epoch


async def test_a_recreated_bucket_of_leases_never_has_two_leaders(cluster: Cluster) -> None:
    process, other_process = await cluster.process("one"), await cluster.process("two")
    await asyncio.sleep(5)
    cluster.stores.store(LEASES).recreate()
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert process.leads
        assert not other_process.leads


class OtherApps(Apps):
    """A controller of another application with the same name."""

    name = "apps"
    apps = primary(kv(Part, bucket="others"))  # type: ignore[assignment]


async def test_a_lease_of_another_application_is_not_taken_and_the_reason_is_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    process = await cluster.process("one")
    clock = asyncio.get_running_loop().time
    make = elections(cluster.stores.store(LEASES), ttl_s=TTL_S, clock=clock)
    other_operator = Operator([OtherApps("two", cluster.work)], nats=cluster.stores, election=make)
    task = asyncio.create_task(other_operator.run())
    await asyncio.sleep(3 * TTL_S)
    state = election_of(other_operator).state()
    assert (process.leads, state.leads) == (True, False)
    assert "runs another controller that is named apps too: it works on App.apps" in state.trouble
    assert caplog.text.count("this one on Part.others") == 1
    await process.stop()
    await asyncio.sleep(TTL_S)
    assert election_of(other_operator).state().leads
    other_operator.stop()
    await task


@pytest.mark.parametrize(
    ("ttl_s", "expected"), [(0.5, "short"), (float("nan"), "short"), (1e6, "long")]
)
async def test_a_time_to_live_below_a_second_or_above_an_hour_is_refused(
    ttl_s: float, expected: str
) -> None:
    with pytest.raises(UsageError, match=f"too {expected}"):
        elections(MemoryStores().store(LEASES), ttl_s=ttl_s)


@pytest.mark.parametrize("ttl_s", [1.0, 3600.0])
async def test_a_time_to_live_of_a_second_or_an_hour_is_accepted(ttl_s: float) -> None:
    assert elections(MemoryStores().store(LEASES), ttl_s=ttl_s)("apps", "").name == "apps"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the clock is of Linux")
def test_the_clock_of_terms_counts_the_time_for_which_the_machine_sleeps() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= steady() <= time.clock_gettime(time.CLOCK_BOOTTIME)
