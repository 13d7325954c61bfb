"""A question is asked at intervals, and its asker does other work until the answer is there."""

import asyncio
from contextlib import closing

import pytest

from natsctl.errors import StoreTimeoutError
from natsctl.jetstream.bucket.periodic import Periodic


class Question:
    """A question that takes a second; the answers are its numbers."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = 0

    async def __call__(self) -> int:
        self.asked += 1
        try:
            await asyncio.sleep(1.0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.asked


def unheard() -> None:
    """Ignore that an answer is there."""


async def test_a_question_is_asked_after_the_interval_and_answered_once() -> None:
    question = Question()
    with closing(Periodic(question, unheard, every_s=10.0)) as periodic:
        answers = []
        for _ in range(240):
            answers.append(periodic.answer())
            await asyncio.sleep(0.1)
    assert [answer for answer in answers if answer is not None] == [1, 2]


async def test_a_hastened_question_is_asked_at_once() -> None:
    question = Question()
    with closing(Periodic(question, unheard, every_s=10.0)) as periodic:
        periodic.hasten()
        assert periodic.answer() is None
        await asyncio.sleep(0.5)
        assert question.asked == 1


async def test_the_error_of_a_question_is_raised() -> None:
    async def fail() -> int:
        raise StoreTimeoutError("no answer")

    with closing(Periodic(fail, unheard, every_s=10.0)) as periodic:
        periodic.hasten()
        assert periodic.answer() is None
        await asyncio.sleep(0)
        with pytest.raises(StoreTimeoutError, match="no answer"):
            periodic.answer()


async def test_closing_cancels_the_question() -> None:
    question = Question()
    with closing(Periodic(question, unheard, every_s=10.0)) as periodic:
        periodic.hasten()
        periodic.answer()
        await asyncio.sleep(0.5)
    await asyncio.sleep(0.1)
    assert question.cancelled == 1


async def test_an_answer_is_announced() -> None:
    announced = asyncio.Event()
    with closing(Periodic(Question(), announced.set, every_s=10.0)) as periodic:
        periodic.hasten()
        periodic.answer()
        await announced.wait()
        assert periodic.answer() == 1
