"""What follows a sync: the one place that decides it."""

from collections.abc import Hashable
from typing import TypeAlias, TypeVar

import msgspec

from natsctl.core.retry import Drop, Retry, RetryPolicy, Stop
from natsctl.core.workqueue import Held, Priority, Workqueue
from natsctl.errors import InvalidKeyError, PermanentError, RetryAfter

K = TypeVar("K", bound=Hashable)


class Synced(msgspec.Struct, frozen=True):
    """The handler succeeded; `after` is when it wants to come back, in seconds."""

    after: float | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler raised."""

    error: Exception


Outcome: TypeAlias = Synced | Failed


def settle(queue: Workqueue[K], key: K, outcome: Outcome, retry: RetryPolicy) -> None:
    """Give a held key back and ask for what follows.

    Succeeded: its failures are forgotten, and it comes back when it wants to, behind whatever is
    urgent. Raised `RetryAfter`: after its delay, as urgent as it was, which is no failure. Raised
    `PermanentError`, or no valid key: forgotten. Raised anything else, a timeout too: as the retry
    policy says.
    """
    match outcome:
        case Synced(after):
            queue.forget(key)
            if after is not None:
                queue.add(key, after=after, priority=Priority.RESYNC)
        case Failed(RetryAfter() as wish):
            held = queue.place(key)
            priority = held.priority if isinstance(held, Held) else Priority.RETRY
            queue.add(key, after=wish.delay_s, priority=priority)
        case Failed(PermanentError() | InvalidKeyError()):
            queue.forget(key)
        case Failed(error):
            _fail(queue, key, retry, error)
    queue.done(key)


def _fail(queue: Workqueue[K], key: K, retry: RetryPolicy, error: Exception) -> None:
    match retry(error, queue.failures(key) + 1):
        case Retry(after):
            queue.retry(key, after=after)
        case Drop():
            queue.forget(key)
        case Stop():
            queue.shut_down(drain=False)
