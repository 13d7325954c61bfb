"""Delivers a recorded event to a program again, instead of events from a store."""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.recording.recordings import Delivery, ReconcilerCall

Begin = Callable[[Mapping[str, Informer[Any]]], None]
"""Called with the informers of the program by name, before the event is handled."""


class Redelivery(msgspec.Struct, frozen=True, eq=False):
    """One recorded event, which a stream or a dynamic watcher of the program delivers."""

    key: str
    operation: str
    delivery: Delivery | ReconcilerCall
    begin: Begin
    outcome: asyncio.Future[float | None] = msgspec.field(default_factory=asyncio.Future)

    def end(self, after_s: float | None, error: Exception | None) -> None:
        """Set the outcome of the event; only the first one counts."""
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(after_s)
        else:
            self.outcome.set_exception(error)


current_redelivery: ContextVar[Redelivery | None] = ContextVar("current_redelivery", default=None)
"""The event that is delivered to the program in this context; None for a program that runs."""
