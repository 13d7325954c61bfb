"""Events are sent in the background: repeats counted together, not too many, none twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.model.recorder import BURST, CLOSE_S, PENDING_MAX, REFILL_S, Budget, Outbox, sending

REPEAT_S = 10.0

Event = tuple[str, int]  # what it says, how often


class Post:
    """Takes events; slowly, or not at all, where told to."""

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.slow_s = 0.0
        self.error: StoreError | None = None

    async def __call__(self, event: Event) -> Event:
        await asyncio.sleep(self.slow_s)
        if self.error is not None:
            raise self.error
        self.sent.append(event)
        return event


@pytest.fixture
def post() -> Post:
    return Post()


@pytest.fixture
async def outbox(post: Post) -> AsyncIterator[Outbox[Event]]:
    outbox = Outbox(post, repeat_s=REPEAT_S)
    async with sending(outbox):
        yield outbox


def tell(outbox: Outbox[Event], says: str, about: str = "shop") -> None:
    outbox.add(
        about,
        (about, says),
        first=lambda: (says, 1),
        again=lambda told: (says, told[1] + 1),
    )


class TestCounting:
    async def test_repeats_that_wait_are_sent_as_one(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for _ in range(5):
            tell(outbox, "no")
        await asyncio.sleep(1)
        assert post.sent == [("no", 5)]

    async def test_a_repeat_of_what_was_sent_goes_on_counting(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for _ in range(3):
            tell(outbox, "no")
            await asyncio.sleep(REPEAT_S)
        assert post.sent == [("no", 1), ("no", 2), ("no", 3)]

    async def test_one_that_comes_too_late_begins_anew(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for _ in range(2):
            tell(outbox, "no")
            await asyncio.sleep(REPEAT_S + 1)
        assert post.sent == [("no", 1), ("no", 1)]

    async def test_so_does_a_repeat_of_what_is_just_being_sent(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        post.slow_s = 1
        tell(outbox, "no")
        await asyncio.sleep(0.5)
        tell(outbox, "no")
        tell(outbox, "no")
        await asyncio.sleep(5)
        assert post.sent == [("no", 1), ("no", 3)]

    async def test_what_was_not_sent_is_not_counted(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        post.error = StoreError("no")
        tell(outbox, "no")
        await asyncio.sleep(2)
        post.error = None
        tell(outbox, "no")
        await asyncio.sleep(2)
        assert post.sent == [("no", 1)]
        assert outbox.dropped == 1

    async def test_they_are_sent_in_the_order_in_which_they_came(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for says in ("a", "b", "a", "c"):
            tell(outbox, says)
        await asyncio.sleep(1)
        assert post.sent == [("a", 2), ("b", 1), ("c", 1)]


class TestQuiet:
    async def test_repeats_within_the_quiet_time_are_sent_as_one(self, post: Post) -> None:
        outbox = Outbox(post, repeat_s=REPEAT_S, quiet_s=5)
        async with sending(outbox):
            for _ in range(10):
                tell(outbox, "no")
                await asyncio.sleep(0.3)
            assert post.sent == [("no", 1)]
            await asyncio.sleep(3)
        assert post.sent == [("no", 1), ("no", 10)]

    async def test_a_repeat_while_the_first_is_being_sent_waits_too(self, post: Post) -> None:
        post.slow_s = 1
        outbox = Outbox(post, repeat_s=REPEAT_S, quiet_s=5)
        async with sending(outbox):
            tell(outbox, "no")
            await asyncio.sleep(0.5)
            tell(outbox, "no")
            await asyncio.sleep(10)
        assert post.sent == [("no", 1), ("no", 2)]

    async def test_what_is_held_is_sent_before_the_end(self, post: Post) -> None:
        outbox = Outbox(post, repeat_s=REPEAT_S, quiet_s=5)
        async with sending(outbox):
            for _ in range(3):
                tell(outbox, "no")
                await asyncio.sleep(0.1)
        assert post.sent == [("no", 1), ("no", 3)]


class TestLimiting:
    async def test_of_an_object_so_many_are_told_and_no_more(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for number in range(BURST + 5):
            tell(outbox, str(number))
        tell(outbox, "quiet", about="other")
        await asyncio.sleep(1)
        assert [says for says, _ in post.sent] == [*map(str, range(BURST)), "quiet"]
        assert outbox.dropped == 5

    async def test_a_repeat_beyond_the_rate_is_counted_with_the_next(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for _ in range(BURST):
            tell(outbox, "no")
            await asyncio.sleep(0.01)
        for _ in range(7):
            tell(outbox, "no")
            await asyncio.sleep(0.01)
        assert post.sent[-1] == ("no", BURST)
        assert outbox.dropped == 7

    async def test_one_more_is_had_after_a_while(self) -> None:
        budget = Budget()
        assert [budget.take("shop") for _ in range(BURST + 1)] == [True] * BURST + [False]
        await asyncio.sleep(REFILL_S)
        assert [budget.take("shop") for _ in range(2)] == [True, False]

    async def test_too_many_on_their_way_are_dropped(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        for number in range(PENDING_MAX + 3):
            tell(outbox, "hi", about=str(number))
        assert outbox.dropped == 3
        await asyncio.sleep(1)
        assert len(post.sent) == PENDING_MAX


class TestFailing:
    async def test_one_that_fails_does_not_keep_the_next(
        self, outbox: Outbox[Event], post: Post, caplog: pytest.LogCaptureFixture
    ) -> None:
        post.error = StoreError("the server is tired")
        tell(outbox, "no")
        await asyncio.sleep(0.5)
        post.error = None
        tell(outbox, "yes")
        await asyncio.sleep(2)
        assert post.sent == [("yes", 1)]
        assert "cannot send event object=shop error='the server is tired'" in caplog.messages

    async def test_a_permission_that_is_missing_is_said_once(
        self, outbox: Outbox[Event], post: Post, caplog: pytest.LogCaptureFixture
    ) -> None:
        post.error = PermissionDeniedError("may not")
        for number in range(10):
            tell(outbox, "no", about=str(number))
        await asyncio.sleep(2)
        assert len([message for message in caplog.messages if "may not" in message]) == 1
        assert outbox.dropped == 10

    async def test_once_it_is_granted_events_are_sent(
        self, outbox: Outbox[Event], post: Post
    ) -> None:
        post.error = PermissionDeniedError("may not")
        tell(outbox, "no")
        await asyncio.sleep(1)
        post.error = None
        tell(outbox, "no")
        await asyncio.sleep(1)
        assert post.sent == [("no", 1)]


class TestEnding:
    async def test_what_waits_is_sent_before_the_end(self, post: Post) -> None:
        outbox = Outbox(post, repeat_s=REPEAT_S)
        async with sending(outbox):
            for number in range(20):
                tell(outbox, str(number))
        assert len(post.sent) == 20

    async def test_the_end_waits_so_long_and_no_longer(
        self, post: Post, caplog: pytest.LogCaptureFixture
    ) -> None:
        post.slow_s = 3600
        clock = asyncio.get_running_loop().time
        outbox = Outbox(post, repeat_s=REPEAT_S)
        async with sending(outbox):
            tell(outbox, "no")
            ended = clock()
        assert clock() - ended == pytest.approx(CLOSE_S)
        assert "events were not sent in time" in caplog.messages


class TestPauses:
    async def test_events_are_sent_no_faster_than_that(self, post: Post) -> None:
        outbox = Outbox(post, repeat_s=REPEAT_S, pause_s=1.0)
        async with sending(outbox):
            for number in range(10):
                tell(outbox, str(number))
            await asyncio.sleep(3.5)
            assert len(post.sent) == 4

    async def test_at_the_end_nobody_waits(self, post: Post) -> None:
        outbox = Outbox(post, repeat_s=REPEAT_S, pause_s=1.0)
        clock = asyncio.get_running_loop().time
        async with sending(outbox):
            for number in range(10):
                tell(outbox, str(number))
            await asyncio.sleep(0.5)
            begun = clock()
        assert len(post.sent) == 10
        assert clock() == begun
