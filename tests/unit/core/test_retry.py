"""Retry policies, exponential backoff and rate limits."""

import asyncio
import math
import sys

import pytest

from natsctl import (
    Drop,
    ExponentialLimiter,
    RateLimit,
    Retry,
    RetryPolicy,
    Stop,
    TokenBucket,
    always_retry,
    exponential,
    give_up_after,
    retry_up_to,
)
from natsctl.errors import UsageError

SIX = [Retry(float(after)) for after in (5, 10, 20, 40, 80, 160)]


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "decisions"),
        [
            (always_retry, [Retry()] * 3),
            (retry_up_to(2), [Retry(), Retry(), Stop(), Stop()]),
            (give_up_after(2), [Retry(), Retry(), Drop(), Drop()]),
            (give_up_after(0), [Drop()]),
            (exponential(), [*SIX, Drop()]),
            (exponential(initial_s=1.5, max_attempts=1), [Retry(1.5), Retry(3.0), Drop()]),
        ],
    )
    def test_a_policy_decides_by_the_number_of_failures(
        self, policy: RetryPolicy, decisions: list[Retry | Drop | Stop]
    ) -> None:
        made = [policy(OSError(), failures) for failures in range(1, len(decisions) + 1)]
        assert made == decisions

    def test_exponential_accepts_any_number_of_failures(self) -> None:
        decision = exponential(max_attempts=sys.maxsize)(OSError(), sys.maxsize)
        assert isinstance(decision, Retry)
        assert decision.after is not None
        assert math.isfinite(decision.after)


class TestExponentialLimiter:
    def test_the_delay_doubles_up_to_a_thousand_seconds(self) -> None:
        limiter = ExponentialLimiter[str](jitter=lambda: 0.0)
        waits = [limiter.delay_s(failures) for failures in (0, 1, 2, 3, 18, 19, 2000, 10**400)]
        assert waits == [0.005, 0.005, 0.010, 0.020, 0.005 * 2**17, 1000, 1000, 1000]

    def test_base_limit_and_jitter_are_options(self) -> None:
        limiter = ExponentialLimiter[str](base_s=1, limit_s=2, jitter=lambda: 0.5)
        assert [limiter.delay_s(failures) for failures in (1, 2, 3)] == [1.5, 3, 3]

    def test_jitter_is_up_to_a_tenth_by_default(self) -> None:
        limiter = ExponentialLimiter[int](base_s=1)
        waits = {limiter.delay_s(1) for _ in range(200)}
        assert len(waits) > 100
        assert 1 <= min(waits) < 1.02
        assert 1.08 < max(waits) <= 1.1


class TestTokenBucket:
    async def test_requests_beyond_the_burst_wait_in_order(self) -> None:
        bucket = TokenBucket(rate_per_s=10, burst=2)
        assert [bucket.take() for _ in range(5)] == pytest.approx([0, 0, 0.1, 0.2, 0.3])

    async def test_tokens_are_refilled_over_time_up_to_the_burst(self) -> None:
        bucket = TokenBucket(rate_per_s=0.5, burst=2)
        for _ in range(3):
            bucket.take()
        await asyncio.sleep(2)
        assert bucket.take() == pytest.approx(2)
        await asyncio.sleep(100)
        assert [bucket.take() for _ in range(3)] == [0, 0, 2]

    async def test_a_token_that_is_given_back_can_be_taken_again(self) -> None:
        bucket = TokenBucket(rate_per_s=1, burst=2)
        bucket.give_back()  # of a full bucket
        assert [bucket.take() for _ in range(3)] == [0, 0, 1]
        bucket.give_back()
        assert bucket.take() == 1

    @pytest.mark.parametrize(("rate_per_s", "burst"), [(0, 1), (-1, 1), (1, 0)])
    def test_rate_and_burst_must_be_positive(self, rate_per_s: float, burst: int) -> None:
        with pytest.raises(UsageError, match="above 0"):
            TokenBucket(rate_per_s=rate_per_s, burst=burst)


class TestRateLimit:
    @pytest.mark.parametrize(("qps", "burst"), [(0.5, 1), (1, 2), (10.0, 100)])
    async def test_the_bucket_has_the_rate_and_the_burst(self, qps: float, burst: int) -> None:
        bucket = RateLimit(qps=qps, burst=burst).bucket()
        assert [bucket.take() for _ in range(burst + 1)][-2:] == pytest.approx([0, 1 / qps])

    @pytest.mark.parametrize(
        ("qps", "burst", "refused"),
        [
            *((qps, 1, "qps above 0 and burst of 1") for qps in (0, -1, math.inf, math.nan)),
            *((1, burst, "qps above 0 and burst of 1 or more") for burst in (0, -1)),
            *((qps, 1, "needs numbers") for qps in ("1", True)),
            *((1, burst, "needs numbers") for burst in (1.5, True)),
        ],
    )
    def test_a_limit_out_of_range_is_rejected(self, qps: float, burst: int, refused: str) -> None:
        with pytest.raises(UsageError, match=refused):
            RateLimit(qps=qps, burst=burst)
