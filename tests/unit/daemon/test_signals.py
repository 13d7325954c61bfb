"""A first signal ends the work in order, and a second one ends the process."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from natsctl.daemon import signals
from natsctl.daemon.signals import SIGNALS, until_signalled


@pytest.fixture(autouse=True)
def _handlers_are_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def stopped_by_a_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(3600)


def test_no_handler_changes_after_the_first_signal_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second signal that follows the log line finds the default handlers."""
    steps: list[str] = []
    install = signal.signal

    def record(number: int, handler: Any) -> Any:
        steps.append(f"handler of {number}")
        return install(number, handler)

    monkeypatch.setattr(signal, "signal", record)
    monkeypatch.setattr(signals.log, "info", lambda *_, **__: steps.append("logged"))
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(until_signalled(stopped_by_a_signal()))
    assert steps[-1] == "logged"
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL] * 2
