"""The outbox sends events in the background, counts repeats and limits their rate."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsctl.errors import StoreError
from natsctl.telemetry.outbox import (
    BURST,
    CLOSE_S,
    GATHER_S,
    LATE_S,
    PENDING_MAX,
    REFILL_S,
    Budget,
    Outbox,
    SendingPace,
    sending,
)

REPEAT_S = 10.0

Event = tuple[str, int]  # the message and its count


class Sender:
    """Records events; can be slow or fail."""

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.slow_s = 0.0
        self.error: Exception | None = None

    async def __call__(self, event: Event) -> Event:
        await asyncio.sleep(self.slow_s)
        if self.error is not None:
            raise self.error
        self.sent.append(event)
        return event


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
async def outbox(sender: Sender) -> AsyncIterator[Outbox[Event]]:
    outbox = Outbox(sender, repeat_s=REPEAT_S)
    async with sending(outbox):
        yield outbox


def add(
    outbox: Outbox[Event], message: str, subject: str = "shop", *, urgent: bool = False
) -> None:
    outbox.add(
        subject,
        (subject, message),
        first=lambda: (message, 1),
        again=lambda sent: (message, sent[1] + 1),
        urgent=urgent,
    )


class TestCounting:
    async def test_a_repeat_after_the_repeat_period_restarts_the_count(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        for _ in range(2):
            add(outbox, "no")
            await asyncio.sleep(REPEAT_S + 1)
        assert sender.sent == [("no", 1), ("no", 1)]

    async def test_repeats_during_a_send_are_added_to_its_count(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        sender.slow_s = 1
        add(outbox, "no")
        await asyncio.sleep(0.5)
        add(outbox, "no")
        add(outbox, "no")
        await asyncio.sleep(5)
        assert sender.sent == [("no", 1), ("no", 3)]

    async def test_events_that_cannot_be_encoded_stop_no_others(
        self, outbox: Outbox[Event], sender: Sender, caplog: pytest.LogCaptureFixture
    ) -> None:
        sender.error = UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
        add(outbox, "no")
        await asyncio.sleep(2)
        sender.error = None
        add(outbox, "yes")
        await asyncio.sleep(2)
        assert sender.sent == [("yes", 1)]
        assert "cannot send event" in caplog.text

    async def test_events_are_sent_in_order(self, outbox: Outbox[Event], sender: Sender) -> None:
        for message in ("a", "b", "a", "c"):
            add(outbox, message)
        await asyncio.sleep(1)
        assert sender.sent == [("a", 2), ("b", 1), ("c", 1)]


class TestQuietTime:
    async def test_repeats_within_the_quiet_time_are_sent_as_one_event(
        self, sender: Sender
    ) -> None:
        outbox = Outbox(sender, repeat_s=REPEAT_S, quiet_s=5)
        async with sending(outbox):
            for _ in range(10):
                add(outbox, "no")
                await asyncio.sleep(0.3)
            assert sender.sent == [("no", 1)]
            await asyncio.sleep(3)
        assert sender.sent == [("no", 1), ("no", 10)]


class TestGathering:
    """Events wait behind the writes that make them."""

    @pytest.fixture
    async def outbox(self, sender: Sender) -> AsyncIterator[Outbox[Event]]:
        outbox = Outbox(sender, repeat_s=REPEAT_S, gather_s=GATHER_S)
        async with sending(outbox):
            yield outbox

    async def test_a_late_event_is_sent_although_many_new_ones_come(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        for number in range(400):
            add(outbox, "created", subject=str(number))
            await asyncio.sleep(0.1 * GATHER_S * 0.9)
        assert len(sender.sent) == pytest.approx(400 - LATE_S / 0.09, abs=1)

    async def test_gathered_events_beyond_the_maximum_are_dropped(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        for number in range(PENDING_MAX + 3):
            add(outbox, "created", subject=str(number))
            add(outbox, "created", subject="0")
        await asyncio.sleep(GATHER_S + 0.1)
        assert outbox.counts.dropped == 3
        assert len(sender.sent) == PENDING_MAX


class TestUrgency:
    """Urgent events do not wait behind writes, and are sent first."""

    @pytest.fixture
    async def outbox(self, sender: Sender) -> AsyncIterator[Outbox[Event]]:
        outbox = Outbox(sender, repeat_s=REPEAT_S, gather_s=GATHER_S, pace=SendingPace(0.01))
        async with sending(outbox):
            yield outbox

    async def test_an_event_that_is_due_does_not_wait_for_an_urgent_one(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        add(outbox, "created")
        await asyncio.sleep(GATHER_S * 0.9)
        add(outbox, "failed", urgent=True)
        await asyncio.sleep(GATHER_S * 0.2)
        assert sender.sent == [("created", 1)]

    async def test_an_urgent_event_takes_the_place_of_the_oldest_other_one(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        for number in range(PENDING_MAX):
            add(outbox, "created", subject=str(number))
        add(outbox, "failed", urgent=True)
        assert outbox.pending == PENDING_MAX
        assert outbox.counts.dropped == 1
        await asyncio.sleep(LATE_S)
        assert sender.sent[0] == ("failed", 1)

    async def test_urgent_events_beyond_the_maximum_are_dropped(
        self, outbox: Outbox[Event]
    ) -> None:
        for number in range(PENDING_MAX + 3):
            add(outbox, "failed", subject=str(number), urgent=True)
        add(outbox, "created")
        assert outbox.pending == PENDING_MAX
        assert outbox.counts.dropped == 4


class TestLimiting:
    async def test_the_budget_is_refilled_over_time(self) -> None:
        budget = Budget()
        assert [budget.take("shop") for _ in range(BURST + 1)] == [True] * BURST + [False]
        await asyncio.sleep(REFILL_S)
        assert [budget.take("shop") for _ in range(2)] == [True, False]

    async def test_events_beyond_the_maximum_of_pending_ones_are_dropped(
        self, outbox: Outbox[Event], sender: Sender
    ) -> None:
        for number in range(PENDING_MAX + 3):
            add(outbox, "hi", subject=str(number))
        assert outbox.counts.dropped == 3
        await asyncio.sleep(1)
        assert len(sender.sent) == PENDING_MAX


class TestFailing:
    async def test_a_failed_event_does_not_delay_the_next(
        self, outbox: Outbox[Event], sender: Sender, caplog: pytest.LogCaptureFixture
    ) -> None:
        sender.error = StoreError("the server is tired")
        add(outbox, "no")
        await asyncio.sleep(0.5)
        sender.error = None
        add(outbox, "yes")
        await asyncio.sleep(2)
        assert sender.sent == [("yes", 1)]
        assert "cannot send event object=shop error='the server is tired'" in caplog.messages


class TestClosing:
    async def test_closing_has_a_time_limit(
        self, sender: Sender, caplog: pytest.LogCaptureFixture
    ) -> None:
        sender.slow_s = 3600
        clock = asyncio.get_running_loop().time
        outbox = Outbox(sender, repeat_s=REPEAT_S)
        async with sending(outbox):
            add(outbox, "no")
            ended = clock()
        assert clock() - ended == pytest.approx(CLOSE_S)
        assert "events were not sent in time events=1" in caplog.messages

    async def test_events_that_are_not_sent_in_time_count_as_dropped(self, sender: Sender) -> None:
        sender.slow_s = CLOSE_S / 2
        outbox = Outbox(sender, repeat_s=REPEAT_S)
        async with sending(outbox):
            for number in range(10):
                add(outbox, str(number))
        assert len(sender.sent) + outbox.counts.dropped == 10
        assert sender.sent


class TestPauses:
    async def test_an_outbox_that_closes_takes_no_turns_from_others(self, sender: Sender) -> None:
        pace = SendingPace(1.0)
        closing, staying = (Outbox(sender, repeat_s=REPEAT_S, pace=pace) for _ in range(2))
        async with sending(staying):
            async with sending(closing):
                for number in range(10):
                    add(closing, str(number))
            add(staying, "hi")
            await asyncio.sleep(1.5)
            assert sender.sent[-1] == ("hi", 1)

    async def test_closing_skips_the_pauses(self, sender: Sender) -> None:
        outbox = Outbox(sender, repeat_s=REPEAT_S, pace=SendingPace(1.0))
        clock = asyncio.get_running_loop().time
        async with sending(outbox):
            for number in range(10):
                add(outbox, str(number))
            await asyncio.sleep(0.5)
            started = clock()
        assert len(sender.sent) == 10
        assert clock() == started
