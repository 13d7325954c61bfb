"""One process at a time leads a controller; the others stand by, and know everything."""

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from natsctl import Controller, NotFoundError, Object, StoreError, kv, primary, secondary
from natsctl.core.coordination.election import Election, ElectionState, elections
from natsctl.core.coordination.lease import Claim
from natsctl.core.coordination.own_record import STEP_DOWN
from natsctl.daemon.operator import Operator
from natsctl.errors import NotLeadingError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import Store, Stored
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.time import VirtualTimeLoop
from tests.support.eventually import eventually

TTL_S = 10.0
LEASES = kv(Claim, bucket="leases", history=1)


class AppSpec(msgspec.Struct, frozen=True):
    text: str = "hi"


class App(Object, frozen=True):
    spec: AppSpec


class Part(App, frozen=True):
    pass


class Floor:
    """Where all processes are seen: who is at which key, and what was done."""

    def __init__(self) -> None:
        self.at: dict[str, str] = {}
        self.awake: list[str] = []  # who went on, after a pause
        self.done: list[tuple[str, str]] = []  # who, and which key

    def by(self, who: str) -> list[str]:
        return [key for name, key in self.done if name == who]


class Apps(Controller):
    """Takes its time for each key, and must be alone with it."""

    name = "apps"
    apps = primary(kv(App, bucket="apps"))
    parts = secondary(kv(Part, bucket="parts"))
    resync_s = 1e6

    def __init__(self, who: str, floor: Floor, *, pause_s: float = 1.0) -> None:
        self.who, self.floor, self.pause_s = who, floor, pause_s
        self.linger_s = 0.0  # after each sync, however it ends
        self.started = self.cleaned = self.sweeps = 0

    async def start(self) -> None:
        self.started += 1

    async def clean(self) -> None:
        self.cleaned += 1

    async def garbage_secondaries(self) -> None:
        self.sweeps += 1
        await super().garbage_secondaries()

    async def sync_handler(self, key: str) -> float | None:
        assert key not in self.floor.at, f"{self.who} and {self.floor.at[key]} are both at {key}"
        self.floor.at[key] = self.who
        try:
            await asyncio.sleep(self.pause_s)
            self.floor.awake.append(self.who)
            app = self.apps.get(key)
            if app is not None:
                await self.parts.apply(key, Part(spec=app.spec))
            self.floor.done.append((self.who, key))
        finally:
            try:
                await asyncio.sleep(self.linger_s)
            finally:
                del self.floor.at[key]
        return None


class Way:
    """A process's way to the store of leases, which can be cut; a `Store`."""

    def __init__(self, store: Store) -> None:
        self.kind: Kind[object] = store.kind
        self.cut = False
        self._store = store

    async def get(self, key: str) -> Stored:
        self._pass()
        return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> Stored:
        self._pass()
        return await self._store.create(key, value)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        self._pass()
        return await self._store.update(key, value, revision=revision)

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._pass()
        return await self._store.delete(key, revision=revision, uid=uid, purge=purge)

    history = watch = None

    def _pass(self) -> None:
        if self.cut:
            raise StoreError("the way is cut")


class Process:
    """One of several that run the same controller."""

    def __init__(self, who: str, stores: MemoryStores, floor: Floor, *, pause_s: float = 1) -> None:
        loop_time = asyncio.get_running_loop().time
        self.slept_s = 0.0  # its machine did, which the loop's clock does not count

        def clock() -> float:
            return loop_time() + self.slept_s

        self.controller = Apps(who, floor, pause_s=pause_s)
        self.way = Way(stores.store(LEASES))
        make = elections(self.way, ttl_s=TTL_S, clock=clock)  # type: ignore[arg-type]  # see Way
        self.operator = Operator([self.controller], nats=stores, election=make)
        self.task = asyncio.create_task(self.operator.run())

    @property
    def election(self) -> Election:
        return self.operator.elections["apps"]

    @property
    def leads(self) -> bool:
        return self.election.state().leads

    async def stop(self) -> None:
        self.operator.stop()
        await self.task


class Town:
    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.floor = Floor()
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

    async def process(self, who: str, *, pause_s: float = 1.0) -> Process:
        """Start one more; it leads, or stands by, when this returns."""
        process = Process(who, self.stores, self.floor, pause_s=pause_s)
        self.processes.append(process)
        await process.operator.synced.wait()
        await asyncio.sleep(0.01)
        return process


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town()
    yield town
    for process in town.processes:
        if not process.task.done():
            await process.stop()


async def test_one_works_and_the_other_stands_by_with_complete_caches(town: Town) -> None:
    await town.put("a", "b")
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(5)
    assert set(town.floor.done) == {("one", "a"), ("one", "b")}
    assert two.controller.apps.items().keys() == {"a", "b"}
    assert (one.leads, two.leads) == (True, False)
    assert (one.controller.started, two.controller.started) == (1, 0)


async def test_one_that_is_stopped_hands_over_at_once(town: Town) -> None:
    await town.put("a", "b")
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(5)
    await one.stop()
    stopped = asyncio.get_running_loop().time()
    await eventually(lambda: two.leads, every_s=0.05)
    assert asyncio.get_running_loop().time() - stopped <= TTL_S / 10
    await asyncio.sleep(3)
    assert set(town.floor.by("two")) == {"a", "b"}
    assert one.controller.cleaned == 1


async def claim(town: Town) -> Claim:
    return msgspec.json.decode((await town.stores.store(LEASES).get("apps")).value, type=Claim)


async def test_a_leader_that_stops_releases_the_lease(town: Town) -> None:
    one = await town.process("one")
    await one.stop()
    assert (await claim(town)).released
    assert not one.leads


async def test_a_leader_that_cannot_renew_steps_down_and_says_so(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    await town.put("a")
    one = await town.process("one", pause_s=1000)
    await asyncio.sleep(1)
    assert town.floor.at == {"a": "one"}
    one.way.cut = True
    await asyncio.sleep(STEP_DOWN * TTL_S + 0.1)
    assert town.floor.at == {}
    assert not one.task.done()
    assert "lost leadership reason='the lease could not be renewed in time'" in caplog.text
    assert "the way is cut" in caplog.text


async def test_another_leads_within_the_time_to_live_of_one_that_is_cut_off(town: Town) -> None:
    await town.put("a")
    one, two = await town.process("one", pause_s=1000), await town.process("two")
    await asyncio.sleep(5)
    one.way.cut = True
    await asyncio.sleep(TTL_S)
    assert (one.leads, two.leads) == (False, True)
    await asyncio.sleep(2)
    assert set(town.floor.done) == {("two", "a")}


async def test_one_that_is_back_stands_by_and_works_again_when_it_leads(town: Town) -> None:
    await town.put("a", "b")
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(5)
    one.way.cut = True
    await asyncio.sleep(TTL_S)
    one.way.cut = False
    await asyncio.sleep(TTL_S)
    assert (one.leads, two.leads) == (False, True)
    town.floor.done.clear()
    await two.stop()
    await asyncio.sleep(3)
    assert one.leads
    assert set(town.floor.by("one")) == {"a", "b"}
    assert one.controller.started == 1


async def test_a_lease_that_is_kept_by_nobody_is_taken_back_with_another_epoch(town: Town) -> None:
    one = await town.process("one")
    first = one.election.state().epoch
    one.way.cut = True
    await asyncio.sleep(3 * TTL_S)
    one.way.cut = False
    await asyncio.sleep(TTL_S)
    again = one.election.state().epoch
    assert first is not None
    assert again is not None
    assert again > first


async def test_who_has_not_ended_the_work_of_one_term_begins_no_other(town: Town) -> None:
    await town.put("a")
    one = await town.process("one", pause_s=1000)
    one.controller.linger_s = 4 * TTL_S
    await asyncio.sleep(1)
    one.way.cut = True
    await asyncio.sleep(TTL_S)
    one.way.cut = False
    await asyncio.sleep(2 * TTL_S)
    assert town.floor.at == {"a": "one"}
    assert not one.leads
    await asyncio.sleep(2 * TTL_S)
    assert one.leads


@pytest.mark.parametrize("after_s", [0.0, 0.7, 1.4, 2.1, 2.9])
async def test_another_leads_in_time_whenever_the_leader_dies(town: Town, after_s: float) -> None:
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(20 + after_s)
    one.way.cut = True
    await asyncio.sleep(TTL_S)
    assert two.leads


async def test_a_lease_that_vanishes_makes_no_two_leaders(town: Town) -> None:
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(5)
    assert two.election.state().holder == one.election.state().identity
    town.stores.store(LEASES).vanish("apps")
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert not (one.leads and two.leads)
    assert one.leads or two.leads


async def test_a_short_silence_costs_nothing(town: Town) -> None:
    await town.put("a")
    one = await town.process("one", pause_s=TTL_S)
    epoch = one.election.state().epoch
    one.way.cut = True
    await asyncio.sleep(STEP_DOWN * TTL_S / 2)
    one.way.cut = False
    await asyncio.sleep(TTL_S)
    assert one.election.state().epoch == epoch
    assert set(town.floor.done) == {("one", "a")}


async def test_a_process_that_was_stopped_takes_not_one_step_more(town: Town) -> None:
    await town.put("a")
    one = await town.process("one", pause_s=2.0)
    await asyncio.sleep(1)
    assert town.floor.at == {"a": "one"}
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(TTL_S * 0.85)  # as if it had been stopped: every timer is due
    for _ in range(20):
        await asyncio.sleep(0)
    assert town.floor.awake == []
    await asyncio.sleep(5)
    assert one.leads
    assert set(town.floor.done) == {("one", "a")}  # begun anew, for nobody else has taken the lease


async def test_a_process_whose_machine_slept_works_on_in_another_term(town: Town) -> None:
    keys = [f"k{number}" for number in range(8)]
    one = await town.process("one")
    first = one.election.state().epoch
    assert first is not None
    one.slept_s = 100 * TTL_S
    await town.put(*keys)
    await asyncio.sleep(TTL_S)
    again = one.election.state().epoch
    assert again is not None
    assert again > first
    assert set(town.floor.by("one")) == set(keys)


async def test_what_a_sync_left_running_writes_nothing_when_it_leads_no_more(town: Town) -> None:
    refused: list[Exception] = []
    left: list[asyncio.Task[None]] = []

    class Careless(Apps):
        async def sync_handler(self, key: str) -> float | None:
            async def write() -> None:
                await asyncio.sleep(TTL_S * 0.85)
                try:
                    await self.parts.apply(key, Part(spec=AppSpec()))
                except NotLeadingError as error:
                    refused.append(error)

            left.append(asyncio.create_task(write()))
            return None

    await town.put("a")
    store = Way(town.stores.store(LEASES))
    clock = asyncio.get_running_loop().time
    make = elections(store, ttl_s=TTL_S, clock=clock)  # type: ignore[arg-type]  # see Way
    operator = Operator([Careless("one", town.floor)], nats=town.stores, election=make)
    task = asyncio.create_task(operator.run())
    await operator.synced.wait()
    await eventually(lambda: left)
    store.cut = True
    await asyncio.wait(left)
    assert [str(error) for error in refused] == [
        "careless is not led by this process: nothing is written"
    ]
    assert town.stores.store(Apps.parts.kind).keys() == []
    operator.stop()
    await task


async def test_a_stop_lets_what_is_under_way_end_before_another_leads(town: Town) -> None:
    await town.put("a")
    one, two = await town.process("one", pause_s=TTL_S * 2), await town.process("two")
    await asyncio.sleep(1)
    await one.stop()
    assert set(town.floor.done) == {("one", "a")}
    await asyncio.sleep(TTL_S)
    assert set(town.floor.by("two")) == {"a"}
    assert two.leads


async def test_who_is_cut_short_keeps_the_lease_until_its_work_has_ended(town: Town) -> None:
    await town.put("a")
    one = await town.process("one", pause_s=1000)
    one.controller.linger_s = 1.0
    await asyncio.sleep(1)
    stopping = asyncio.create_task(one.stop())

    async def released() -> bool:
        return (await claim(town)).released

    await eventually(released, within_s=100)
    assert town.floor.at == {}
    await stopping
    assert one.task.done()


async def test_a_standby_stops_at_once(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    await town.process("one")
    two = await town.process("two")
    two.way.cut = True
    before = asyncio.get_running_loop().time()
    await two.stop()
    assert asyncio.get_running_loop().time() == before
    assert two.controller.cleaned == 1
    assert "left to expire" not in caplog.text


async def test_an_election_says_how_it_stands(town: Town) -> None:
    one, two = await town.process("one"), await town.process("two")
    state, other = one.election.state(), two.election.state()
    assert state == ElectionState("apps", state.identity, state.identity, True, state.epoch, True)
    assert other == ElectionState("apps", other.identity, state.identity, False, None, True)
    two.way.cut = True
    await asyncio.sleep(TTL_S)
    assert not two.election.state().known


async def test_only_the_leader_collects_garbage(town: Town) -> None:
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(100)
    assert one.controller.sweeps > 2
    assert two.controller.sweeps == 0
    one.way.cut = True
    await asyncio.sleep(TTL_S)
    before = one.controller.sweeps
    await asyncio.sleep(100)
    assert one.controller.sweeps == before
    assert two.controller.sweeps > 2


async def test_events_are_told_by_the_leader_only(town: Town) -> None:
    await town.put("a")
    await town.process("one")
    await town.process("two")
    await asyncio.sleep(1)
    await town.apps.create("bad", b"no json")
    await asyncio.sleep(5)
    assert len([at for at in town.stores.events.events if at.key == "bad"]) == 1


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_cut_no_two_are_ever_at_one_key(town: Town, seed: int) -> None:
    chance = random.Random(seed)
    keys = [f"k{number}" for number in range(8)]
    await town.put(*keys)
    processes = [await town.process(f"p{number}", pause_s=0.7) for number in range(3)]
    for step in range(40):
        chance.choice(processes).way.cut = chance.random() < 0.5
        await town.put(chance.choice(keys), text=str(step))
        await asyncio.sleep(chance.uniform(0, TTL_S))
        assert sum(process.leads for process in processes) <= 1
    for process in processes:
        process.way.cut = False
    await asyncio.sleep(2 * TTL_S)
    assert sum(process.leads for process in processes) == 1
    assert not any(process.task.done() for process in processes)
    assert len({who for who, _ in town.floor.done}) > 1
    for key in keys:
        text = (await town.apps.get(key)).value
        part = msgspec.json.decode((await town.stores.store(Apps.parts.kind).get(key)).value)
        assert part["spec"] == msgspec.json.decode(text)["spec"]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_hands_do_to_the_lease_no_two_lead(town: Town, seed: int) -> None:
    chance, leases = random.Random(seed), town.stores.store(LEASES)
    processes = [await town.process(f"p{number}") for number in range(3)]
    await town.put("a", "b", "c")
    for _ in range(40):
        await meddle(chance, leases)
        if chance.random() < 0.2:
            chance.choice(processes).way.cut = chance.random() < 0.5
        if chance.random() < 0.1:
            chance.shuffle(processes)
            await processes.pop().stop()
            processes.append(await town.process("new"))
        for _ in range(chance.randint(1, 150)):
            await asyncio.sleep(TTL_S / 100)
            assert sum(process.leads for process in town.processes) <= 1
    for process in processes:
        process.way.cut = False
    await asyncio.sleep(3 * TTL_S)
    assert sum(process.leads for process in processes) == 1


async def meddle(chance: random.Random, leases: MemoryStore) -> None:
    """Do something to the lease that no process does."""
    key = "apps"
    values = [b"?", b"{}", b'{"holder": "x", "since": "", "ttlS": 0}']
    values += [b'{"holder": "x", "since": "", "ttlS": %s}' % ttl for ttl in (b"-1", b"1e300", b"1")]
    match chance.choice(("delete", "purge", "write", "write", "nothing", "nothing")):
        case "write" if leases.keys():
            revision = (await leases.get(key)).revision
            await leases.update(key, chance.choice(values), revision=revision)
        case "delete" | "purge" as how if leases.keys():
            await leases.delete(key, purge=how == "purge")
        case _:
            pass


async def test_a_lease_that_is_deleted_by_hand_stays_its_leader_s(town: Town) -> None:
    one, two = await town.process("one"), await town.process("two")
    epoch = one.election.state().epoch
    await asyncio.sleep(5)
    await town.stores.store(LEASES).delete("apps")
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert one.leads
        assert not two.leads
    assert one.election.state().epoch == epoch


async def test_a_bucket_of_leases_that_is_made_again_makes_no_two_leaders(town: Town) -> None:
    one, two = await town.process("one"), await town.process("two")
    await asyncio.sleep(5)
    town.stores.store(LEASES).recreate()
    for _ in range(200):
        await asyncio.sleep(TTL_S / 100)
        assert one.leads
        assert not two.leads


class Others(Apps):
    """Another application's controller, of the same name by chance."""

    name = "apps"
    apps = primary(kv(Part, bucket="others"))  # type: ignore[assignment]


async def test_another_application_s_lease_is_left_alone_and_the_reason_is_given(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.process("one")
    clock = asyncio.get_running_loop().time
    make = elections(town.stores.store(LEASES), ttl_s=TTL_S, clock=clock)
    stranger = Operator([Others("two", town.floor)], nats=town.stores, election=make)
    task = asyncio.create_task(stranger.run())
    await asyncio.sleep(3 * TTL_S)
    state = stranger.elections["apps"].state()
    assert (one.leads, state.leads) == (True, False)
    assert "runs another controller that is named apps too: it works on App.apps" in state.trouble
    assert caplog.text.count("this one on Part.others") == 1
    await one.stop()
    await asyncio.sleep(TTL_S)
    assert stranger.elections["apps"].state().leads
    stranger.stop()
    await task


@pytest.mark.parametrize(("ttl_s", "why"), [(0.5, "short"), (float("nan"), "short"), (1e6, "long")])
async def test_no_lease_is_shorter_than_a_second_or_longer_than_an_hour(
    ttl_s: float, why: str
) -> None:
    with pytest.raises(UsageError, match=f"too {why}"):
        elections(MemoryStores().store(LEASES), ttl_s=ttl_s)
