"""The records in the bucket natsctl pause a controller, and the deleted objects of its keys."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from natsctl import EventType, Kind, KvKind, kv
from natsctl.core.informer import Informer
from natsctl.core.pausing.claim_records import ClaimRecord, claim_record
from natsctl.core.pausing.claims import ClaimedKeys, current_claims
from natsctl.core.pausing.pause_reports import WHOLE, PauseReports
from natsctl.core.pausing.paused_keys import RECHECK_S, PausedKeys
from natsctl.core.pausing.pausing import (
    LISTED_S,
    PAUSES,
    RETRY_S,
    Pausing,
    controller_record,
    deaths_record,
    key_record,
)
from natsctl.core.pausing.quarantine import DEATHS_MAX, Deaths
from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.model.pause import Pause
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.controllers.app_controller import APPS, App, SlowStores, put
from tests.support.controllers.quarantined_apps import die

WHOLE_RECORD = controller_record("apps")
ALONE = msgspec.json.encode(ClaimRecord((("apps", "shop"),), alone=True))
HELD = Pause(reason="waits for a disk")


class Bench:
    """A controller with one sync loop of apps, none of which exists."""

    def __init__(self, stores: MemoryStores | None = None) -> None:
        self.stores = MemoryStores() if stores is None else stores
        self.records = self.stores.store(PAUSES)
        self.events: list[tuple[str, str, str]] = []  # the key, the reason and the message
        self.pausing = Pausing("apps")
        self.apps = self.loop(lambda key: key != "foreign")

    def loop(self, holds: Callable[[str], bool], kind: KvKind[App] = APPS) -> PausedKeys:
        """Return the paused keys of one more sync loop."""
        paused = self.pausing.keys(holds)
        paused.follow((Informer(MemoryStore(kind), kind),))
        return paused

    def report(self) -> None:
        """Record the events of pauses from now on."""
        self.pausing.report_to(PauseReports("apps", holds=self.apps.holds, event=self.event))

    def event(self, key: str, _type: EventType, reason: str, message: str) -> None:
        self.events.append((key, reason, message))

    async def set(self, name: str, value: str | bytes) -> None:
        await put(self.records, name, value.encode() if isinstance(value, str) else value)
        await asyncio.sleep(0.01)

    async def remove(self, name: str) -> None:
        await self.records.delete(name)
        await asyncio.sleep(0.01)

    async def waits(self) -> bool:
        """Return whether the whole controller is paused, as its workers see it."""
        try:
            await asyncio.wait_for(self.pausing.wait_running(), 0.01)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def watching(bench: Bench) -> AsyncIterator[None]:
    """Follow the records while the context lasts, after they were listed."""
    async with bench.pausing.watching(bench.stores):
        await bench.pausing.listed.wait()
        yield


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lasting(seconds: float) -> str:
    """Return the text of a pause that ends so many seconds from now."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return Pause(until=until.isoformat()).text


def dead(state: str, count: int = DEATHS_MAX) -> bytes:
    return msgspec.json.encode(Deaths(count=count, last="2026-01-01T00:00:00Z", state=state))


def test_every_sync_loop_of_a_controller_has_a_name(bench: Bench) -> None:
    later = bench.loop(lambda _: True)
    assert (bench.apps.name, later.name) == ("apps.0", "apps.1")
    assert Pausing("").keys(lambda _: True).name == ""


async def test_without_stores_no_record_pauses_the_controller(bench: Bench) -> None:
    async with bench.pausing.watching(None):
        assert bench.pausing.listed.is_set()
        assert not await bench.waits()


class TestTheRecordOfTheController:
    async def test_a_controller_is_paused_until_its_record_is_deleted(self, bench: Bench) -> None:
        async with watching(bench):
            await bench.set(WHOLE_RECORD, HELD.text)
            assert bench.pausing.whole == HELD
            assert await bench.waits()
            await bench.remove(WHOLE_RECORD)
            assert bench.pausing.whole is None
            assert not await bench.waits()

    async def test_the_record_of_a_controller_is_listed_before_any_key_is_synced(self) -> None:
        stores = SlowStores()
        bench = Bench(stores)
        await put(bench.records, WHOLE_RECORD, b"true")
        with stores.store(PAUSES).held_up():
            async with bench.pausing.watching(stores):
                await asyncio.sleep(LISTED_S - 1)
                assert not bench.pausing.listed.is_set()

    async def test_the_record_of_a_controller_ends_the_pause_at_its_time(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(WHOLE_RECORD, lasting(30 * RECHECK_S))
            await asyncio.sleep(28 * RECHECK_S)
            assert await bench.waits()
            await asyncio.sleep(2 * RECHECK_S)
            assert not await bench.waits()

    async def test_the_record_of_a_controller_has_the_last_end_of_the_pause(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(WHOLE_RECORD, lasting(10))
            await bench.set(WHOLE_RECORD, HELD.text)
            await asyncio.sleep(20)
            assert bench.pausing.whole == HELD

    async def test_the_pause_in_the_record_of_a_controller_may_be_over(self, bench: Bench) -> None:
        async with watching(bench):
            await bench.set(WHOLE_RECORD, lasting(-1))
            assert bench.pausing.whole is None

    async def test_a_changed_record_of_a_controller_is_reported_after_the_start(
        self, bench: Bench
    ) -> None:
        await put(bench.records, WHOLE_RECORD, b"old")
        bench.report()
        async with watching(bench):
            assert bench.events == []
            await bench.set(WHOLE_RECORD, HELD.text)
            await bench.set(WHOLE_RECORD, HELD.text)
            await bench.remove(WHOLE_RECORD)
        assert bench.events == [
            (WHOLE, "Paused", "paused waits for a disk"),
            (WHOLE, "Resumed", "resumed; it was paused waits for a disk"),
        ]

    async def test_the_record_of_a_controller_does_not_pause_another_controller(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(controller_record("others"), HELD.text)
            assert bench.pausing.whole is None


class TestTheRecordOfADeletedObject:
    async def test_the_key_of_a_deleted_object_is_paused_until_its_record_is_deleted(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "eu.shop"), HELD.text)
            assert bench.pausing.pauses() == {"eu.shop": HELD}
            await bench.remove(key_record("apps", "apps", "eu.shop"))
            assert bench.pausing.pauses() == {}

    async def test_the_record_of_a_deleted_object_concerns_the_loops_of_its_bucket(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "others", "shop"), HELD.text)
            assert bench.pausing.pauses() == {}

    async def test_the_record_of_a_deleted_object_needs_the_key_of_the_object(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "").rstrip("."), HELD.text)
            assert bench.pausing.pauses() == {}

    async def test_a_record_of_a_deleted_object_without_a_pause_resumes_the_key(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "shop"), HELD.text)
            await bench.set(key_record("apps", "apps", "shop"), "false")
            assert bench.pausing.pauses() == {}

    async def test_the_record_of_a_deleted_object_may_have_bytes_that_are_no_text(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "shop"), b"\xff")
            assert list(bench.pausing.pauses()) == ["shop"]

    async def test_the_record_of_a_deleted_object_counts_if_this_process_syncs_the_key(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            for key in ("shop", "foreign"):
                await bench.set(key_record("apps", "apps", key), HELD.text)
            assert (bench.pausing.count, len(bench.pausing.pauses())) == (1, 2)


class TestThePauseOfAKey:
    async def test_a_key_has_its_own_pause_or_that_of_the_controller(self, bench: Bench) -> None:
        bench.loop(lambda _: True, kv(App, bucket="others"))
        async with watching(bench):
            await bench.set(key_record("apps", "others", "shop"), HELD.text)
            assert (bench.pausing.of("shop"), bench.pausing.of("market")) == (HELD, None)
            await bench.set(WHOLE_RECORD, "all")
            assert bench.pausing.of("shop") == bench.pausing.of("market") == Pause(reason="all")

    async def test_the_pause_of_a_key_names_the_command_that_resumes_the_key(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "shop"), HELD.text)
            advice = "shop is paused waits for a disk: natsctl resume apps/shop"
            assert bench.pausing.advice("shop", "apps") == advice
            assert not bench.pausing.advice("market", "apps")
            await bench.set(WHOLE_RECORD, "all")
            resume = "controller apps is paused all: natsctl resume --all -c apps"
            assert bench.pausing.advice("shop", "apps") == resume

    async def test_the_pause_of_a_key_is_reported_for_loops_that_begin_later_too(
        self, bench: Bench
    ) -> None:
        bench.report()
        later = bench.loop(lambda _: True)
        async with watching(bench):
            await bench.set(key_record("apps", "apps", "shop"), HELD.text)
            await bench.remove(key_record("apps", "apps", "shop"))
        assert [reason for _, reason, _ in bench.events] == ["Resumed"] * 2
        assert later.pauses == {}

    async def test_the_pause_of_a_key_is_reported_by_the_process_that_syncs_the_key(
        self, bench: Bench
    ) -> None:
        reports = PauseReports("apps", holds=bench.apps.holds, event=bench.event)
        for key in ("shop", "foreign"):
            reports.paused(key, HELD)
            reports.resumed(key, HELD, pending=True)
        assert bench.events == [
            ("shop", "Paused", "paused waits for a disk"),
            ("shop", "Resumed", "resumed; it was paused waits for a disk"),
        ]


class TestRecordsThatCannotBeRead:
    async def test_unreadable_records_delay_the_start_for_a_while(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        stores = SlowStores()
        bench = Bench(stores)
        with stores.store(PAUSES).held_up():
            async with bench.pausing.watching(stores):
                await asyncio.sleep(LISTED_S + 1)
                assert bench.pausing.listed.is_set()
        assert caplog.text.count("cannot list the pauses in the bucket natsctl") == 1

    async def test_records_are_read_once_the_permission_is_granted(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        await put(bench.records, WHOLE_RECORD, b"true")
        bench.records.fail(PermissionDeniedError("you may not"))
        async with watching(bench):
            assert asyncio.get_running_loop().time() < LISTED_S
            await asyncio.sleep(3.5 * RECHECK_S)
            assert caplog.text.count("cannot read the pauses of controllers") == 1
            bench.records.fail(None)
            await asyncio.sleep(RECHECK_S)
            assert await bench.waits()
        assert "cannot list the pauses" not in caplog.text

    async def test_records_pause_nothing_if_their_bucket_cannot_be_opened(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class NoStores(MemoryStores):
            async def open(self, kind: Kind[object]) -> MemoryStore:
                raise StoreError(f"no {kind.name}")

        bench = Bench()
        async with bench.pausing.watching(NoStores()):
            assert bench.pausing.listed.is_set()
            assert not await bench.waits()
        assert caplog.text.count("cannot read the pauses of controllers") == 1


class TestTheRecordOfDeaths:
    async def test_a_record_of_deaths_quarantines_the_key_until_the_record_is_deleted(
        self, bench: Bench
    ) -> None:
        name = deaths_record("apps", "apps", "eu.shop")
        async with watching(bench):
            await bench.set(name, dead(""))
            assert list(bench.pausing.quarantined()) == ["eu.shop"]
            await bench.remove(name)
            assert bench.pausing.quarantined() == {}

    async def test_a_record_of_deaths_concerns_the_loops_of_its_place(self, bench: Bench) -> None:
        async with watching(bench):
            await bench.set(deaths_record("apps", "others", "shop"), dead(""))
            assert bench.pausing.quarantined() == {}

    async def test_a_record_of_deaths_is_deleted_if_the_object_has_changed_since(
        self, bench: Bench
    ) -> None:
        await put(bench.records, deaths_record("apps", "apps", "shop"), dead("another state"))
        async with watching(bench):
            await bench.pausing.note_deaths(bench.apps, shared=False)
            await asyncio.sleep(1)
            assert list(bench.records.keys()) == []

    async def test_a_record_of_deaths_is_deleted_once_the_store_answers(self, bench: Bench) -> None:
        await put(bench.records, deaths_record("apps", "apps", "shop"), dead("another state"))
        async with watching(bench):
            bench.records.fail(StoreError("away"))
            await bench.pausing.note_deaths(bench.apps, shared=False)
            await asyncio.sleep(1)
            bench.records.fail(None)
            await asyncio.sleep(2 * RETRY_S)
            assert list(bench.records.keys()) == []

    async def test_a_record_of_deaths_is_deleted_by_the_process_that_syncs_the_key(
        self, bench: Bench
    ) -> None:
        name = deaths_record("apps", "apps", "foreign")
        await put(bench.records, name, dead("another state"))
        async with watching(bench):
            await bench.pausing.note_deaths(bench.apps, shared=False)
            await asyncio.sleep(1)
            assert list(bench.records.keys()) == [name]


class TestADeathOfAProcess:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[Path]:
        token = current_claims.set(ClaimedKeys(tmp_path))
        yield tmp_path
        current_claims.reset(token)

    @pytest.fixture
    def bench(self, directory: Path) -> Bench:
        return Bench()

    async def test_a_death_without_stores_counts_in_this_process(
        self, bench: Bench, directory: Path
    ) -> None:
        die(directory, "shop")
        await bench.pausing.note_deaths(bench.apps, shared=False)
        assert self.counts(bench) == {"shop": 1}

    async def test_a_death_on_another_machine_counts_for_the_key_that_was_alone(
        self, bench: Bench
    ) -> None:
        async with watching(bench):
            await bench.set(claim_record("apps", "7-a"), ALONE)
            await bench.pausing.note_deaths(bench.apps, shared=False)
            assert self.counts(bench) == {"shop": 1}
            record = await bench.records.get(deaths_record("apps", "apps", "shop"))
            assert msgspec.json.decode(record.value, type=Deaths).processes == ("7-a",)

    async def test_a_death_that_cannot_be_recorded_counts_in_this_process(
        self, bench: Bench, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with watching(bench):
            await bench.set(claim_record("apps", "7-a"), ALONE)
            bench.records.fail(StoreError("away"))
            await bench.pausing.note_deaths(bench.apps, shared=False)
            assert self.counts(bench) == {"shop": 1}
        assert caplog.text.count("cannot record that a process died during a sync") == 1

    async def test_a_death_adds_to_the_deaths_that_are_recorded(self, bench: Bench) -> None:
        await put(bench.records, deaths_record("apps", "apps", "shop"), dead("", DEATHS_MAX - 1))
        bench.report()
        async with watching(bench):
            await bench.set(claim_record("apps", "7-a"), ALONE)
            await bench.pausing.note_deaths(bench.apps, shared=False)
            assert list(bench.pausing.quarantined()) == ["shop"]
        assert [(key, reason) for key, reason, _ in bench.events] == [("shop", "Quarantined")]

    async def test_a_death_is_reported_with_the_number_of_deaths(self, bench: Bench) -> None:
        bench.report()
        async with watching(bench):
            await bench.set(claim_record("apps", "7-a"), ALONE)
            await bench.pausing.note_deaths(bench.apps, shared=False)
        [(key, reason, message)] = bench.events
        assert (key, reason) == ("shop", "ProcessDied")
        assert message.startswith("1 process died during its sync")

    async def test_no_death_counts_after_a_clean_end(self, bench: Bench) -> None:
        async with watching(bench):
            await bench.set(claim_record("apps", "7-a"), ALONE)
            await bench.remove(claim_record("apps", "7-a"))
            await bench.pausing.note_deaths(bench.apps, shared=False)
            assert self.counts(bench) == {}

    def counts(self, bench: Bench) -> dict[str, int]:
        return {key: deaths.count for key, deaths in bench.apps.quarantine.deaths.items()}
