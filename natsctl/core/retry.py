"""Decides whether a failed sync is retried, and when."""

import asyncio
import math
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from natsctl.errors import UsageError, is_delay
from natsctl.telemetry.hiding import shown
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

_DOUBLINGS_MAX = 64  # enough to pass any limit, and far from where a float overflows


class Retry(msgspec.Struct, frozen=True):
    """Retry `after` this many seconds, or None for the delay of the queue's limiter."""

    after: float | None = None


class Drop(msgspec.Struct, frozen=True):
    """Don't retry the key until something enqueues it again."""


class Stop(msgspec.Struct, frozen=True):
    """Stop the controller with this error."""


Decision: TypeAlias = Retry | Drop | Stop

RetryPolicy: TypeAlias = Callable[[Exception, int], Decision]
"""Returns the decision for an error and the key's failures in a row, counted from 1."""

Jitter: TypeAlias = Callable[[], float]
"""Returns a random share of a delay to add to it, so that keys are not retried together."""


def always_retry(_error: Exception, _failures: int) -> Decision:
    """Retry without end, after the delays of the queue's limiter."""
    return Retry()


def retry_up_to(limit: int) -> RetryPolicy:
    """Retry a key *limit* times in a row, then stop the controller."""
    return lambda _error, failures: Retry() if failures <= limit else Stop()


def give_up_after(limit: int) -> RetryPolicy:
    """Retry a key *limit* times in a row, then drop it; other keys go on."""
    return lambda _error, failures: Retry() if failures <= limit else Drop()


def exponential(initial_s: float = 5.0, max_attempts: int = 5) -> RetryPolicy:
    """Retry after *initial_s*, then after twice as long each time, then drop the key.

    Attempts count from 0, and the attempt numbered *max_attempts* is made, as in grafana-app-sdk:
    the default retries six times, after 5, 10, 20, 40, 80 and 160 s. There is no jitter.
    """

    def decide(_error: Exception, failures: int) -> Decision:
        if failures > max_attempts + 1:
            return Drop()
        return Retry(backoff(failures, base_s=initial_s, limit_s=math.inf, jitter=no_jitter))

    return decide


def no_jitter() -> float:
    """Return 0."""
    return 0.0


def up_to_a_tenth() -> float:
    """Return a uniform random number between 0 and 0.1."""
    return random.random() / 10  # noqa: S311 - spreads load, keeps no secret


def backoff(
    failures: int, *, base_s: float, limit_s: float, jitter: Jitter = up_to_a_tenth
) -> float:
    """Return the seconds to wait after this many failures in a row, counted from 1.

    The delay is *base_s*, doubled for every failure after the first, and at most *limit_s*. The
    jitter is added after that, so that keys at the limit are spread too. Any count is allowed.
    """
    doublings = min(max(failures - 1, 0), _DOUBLINGS_MAX)
    return min(limit_s, base_s * 2.0**doublings) * (1.0 + jitter())


def decide_retry(retry: RetryPolicy, error: Exception, failures: int) -> Decision:
    """Return the policy's decision; if the policy itself fails, the key is retried with backoff."""
    try:
        decision = retry(error, failures)
    except (Exception, SystemExit):
        log.exception("the retry policy failed; retrying the key with backoff")
        return Retry()
    match decision:
        case Retry(None) | Drop() | Stop():
            return decision
        case Retry(after) if is_delay(after):
            return decision
        case _:
            pass
    log.error(
        "the retry policy must return Retry, Drop or Stop; retrying the key with backoff",
        returned=shown(decision),
    )
    return Retry()


class ExponentialLimiter(Generic[K]):
    """The delays of failing keys: client-go's by default, 5 ms doubling to 1000 s, with jitter."""

    def __init__(
        self, *, base_s: float = 0.005, limit_s: float = 1000.0, jitter: Jitter = up_to_a_tenth
    ) -> None:
        self._base_s, self._limit_s, self._jitter = base_s, limit_s, jitter

    def delay_s(self, failures: int) -> float:
        """Return the seconds until the retry after this many failures in a row."""
        return backoff(failures, base_s=self._base_s, limit_s=self._limit_s, jitter=self._jitter)


class TokenBucket:
    """A token bucket that limits a rate over all keys.

    It holds at most *burst* tokens, is full at first, and gains *rate_per_s* tokens per second of
    loop time. Raises `UsageError` if the rate or the burst isn't positive.
    """

    def __init__(self, *, rate_per_s: float, burst: int) -> None:
        if rate_per_s <= 0 or burst <= 0:
            raise UsageError(
                f"a token bucket needs a rate and a burst above 0, not {rate_per_s:g} and {burst}"
            )
        self._rate_per_s, self._burst = rate_per_s, float(burst)
        self._tokens = self._burst
        self._counted_at = -math.inf

    def take(self) -> float:
        """Take a token, and return the seconds until you have it: 0.0 means now.

        Who calls first gets the next token first.
        """
        now = asyncio.get_running_loop().time()
        gained = (now - self._counted_at) * self._rate_per_s
        self._tokens = min(self._burst, self._tokens + gained) - 1.0
        self._counted_at = now
        return max(0.0, -self._tokens / self._rate_per_s)

    def give_back(self) -> None:
        self._tokens = min(self._burst, self._tokens + 1.0)


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on starting syncs: *qps* per second on average, and up to *burst* at once.

    Raises `UsageError` unless *qps* is finite and above 0, and *burst* is an integer above 0.
    """

    qps: float
    burst: int

    def __post_init__(self) -> None:
        numbers = (isinstance(self.qps, int | float), type(self.burst) is int)
        if not all(numbers) or isinstance(self.qps, bool):
            raise UsageError(f"a rate limit needs numbers, not {self.qps!r} and {self.burst!r}")
        if not 0 < self.qps < math.inf or self.burst < 1:
            raise UsageError(
                f"a rate limit needs qps above 0 and burst of 1 or more, not {self.qps:g} and "
                f"{self.burst}"
            )

    def bucket(self) -> TokenBucket:
        return TokenBucket(rate_per_s=self.qps, burst=self.burst)
