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


def decisions(policy: RetryPolicy, failures: int) -> list[Retry | Drop | Stop]:
    return [policy(OSError(), count) for count in range(1, failures + 1)]


class TestPolicies:
    def test_always_retry_leaves_the_delay_to_the_limiter(self) -> None:
        assert decisions(always_retry, 3) == [Retry()] * 3

    def test_retry_up_to_stops_after_its_number_of_retries(self) -> None:
        assert decisions(retry_up_to(2), 4) == [Retry(), Retry(), Stop(), Stop()]

    def test_give_up_after_drops_the_key_after_its_number_of_retries(self) -> None:
        assert decisions(give_up_after(2), 4) == [Retry(), Retry(), Drop(), Drop()]

    def test_give_up_after_zero_never_retries(self) -> None:
        assert decisions(give_up_after(0), 1) == [Drop()]

    def test_exponential_makes_six_retries_by_default(self) -> None:
        waits = [Retry(float(after)) for after in (5, 10, 20, 40, 80, 160)]
        assert decisions(exponential(), 7) == [*waits, Drop()]

    def test_the_first_delay_and_the_last_attempt_of_exponential_are_options(self) -> None:
        policy = exponential(initial_s=1.5, max_attempts=1)
        assert decisions(policy, 3) == [Retry(1.5), Retry(3.0), Drop()]

    def test_exponential_accepts_any_number_of_failures(self) -> None:
        decision = exponential(max_attempts=sys.maxsize)(OSError(), sys.maxsize)
        assert isinstance(decision, Retry)
        assert decision.after is not None
        assert math.isfinite(decision.after)


class TestExponentialLimiter:
    def test_the_delay_doubles_up_to_a_thousand_seconds(self) -> None:
        limiter = ExponentialLimiter[str](jitter=lambda: 0.0)
        waits = [limiter.delay_s(failures) for failures in range(1, 2001)]
        assert waits[:3] == [0.005, 0.010, 0.020]
        assert waits[17:20] == [0.005 * 2**17, 1000, 1000]
        assert waits[-1] == 1000

    def test_base_limit_and_jitter_are_options(self) -> None:
        limiter = ExponentialLimiter[str](base_s=1, limit_s=2, jitter=lambda: 0.5)
        assert [limiter.delay_s(failures) for failures in (1, 2, 3)] == [1.5, 3, 3]

    def test_the_limiter_accepts_any_number_of_failures(self) -> None:
        limiter = ExponentialLimiter[str](jitter=lambda: 0.0)
        assert [limiter.delay_s(failures) for failures in (0, 10**400)] == [0.005, 1000]

    def test_jitter_is_up_to_a_tenth_by_default(self) -> None:
        limiter = ExponentialLimiter[int](base_s=1)
        waits = {limiter.delay_s(1) for _ in range(200)}
        assert len(waits) > 100
        assert 1 <= min(waits) < 1.02
        assert 1.08 < max(waits) <= 1.1


class TestTokenBucket:
    async def test_a_burst_does_not_wait(self) -> None:
        bucket = TokenBucket(rate_per_s=10, burst=3)
        assert [bucket.take() for _ in range(3)] == [0, 0, 0]

    async def test_requests_beyond_the_burst_wait_in_order(self) -> None:
        bucket = TokenBucket(rate_per_s=10, burst=1)
        assert [bucket.take() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])

    async def test_ten_thousand_requests_at_ten_per_second_take_990_seconds(self) -> None:
        bucket = TokenBucket(rate_per_s=10, burst=100)
        assert [bucket.take() for _ in range(10_000)][-1] == pytest.approx(990)

    async def test_tokens_are_refilled_over_time(self) -> None:
        bucket = TokenBucket(rate_per_s=0.5, burst=2)
        for _ in range(3):
            bucket.take()
        await asyncio.sleep(2)
        assert bucket.take() == pytest.approx(2)

    async def test_tokens_are_limited_to_the_burst(self) -> None:
        bucket = TokenBucket(rate_per_s=1, burst=2)
        bucket.take()
        await asyncio.sleep(100)
        assert [bucket.take() for _ in range(3)] == [0, 0, 1]

    @pytest.mark.parametrize(("rate_per_s", "burst"), [(0, 1), (-1, 1), (1, 0)])
    def test_rate_and_burst_must_be_positive(self, rate_per_s: float, burst: int) -> None:
        with pytest.raises(UsageError, match="above 0"):
            TokenBucket(rate_per_s=rate_per_s, burst=burst)

    async def test_a_token_that_is_given_back_can_be_taken_again(self) -> None:
        bucket = TokenBucket(rate_per_s=1, burst=2)
        assert [bucket.take() for _ in range(3)] == [0, 0, 1]
        bucket.give_back()
        assert bucket.take() == 1

    async def test_tokens_that_are_given_back_are_limited_to_the_burst(self) -> None:
        bucket = TokenBucket(rate_per_s=1, burst=2)
        bucket.give_back()
        assert [bucket.take() for _ in range(3)] == [0, 0, 1]


class TestRateLimit:
    @pytest.mark.parametrize(("qps", "burst"), [(0.5, 1), (1, 2), (10.0, 100)])
    async def test_the_bucket_has_the_rate_and_the_burst(self, qps: float, burst: int) -> None:
        bucket = RateLimit(qps=qps, burst=burst).bucket()
        assert [bucket.take() for _ in range(burst + 1)][-2:] == pytest.approx([0, 1 / qps])

    @pytest.mark.parametrize(
        ("qps", "burst"), [(0, 1), (-1, 1), (math.inf, 1), (math.nan, 1), (1, 0), (1, -1)]
    )
    def test_a_limit_out_of_range_is_rejected(self, qps: float, burst: int) -> None:
        with pytest.raises(UsageError, match="qps above 0 and burst of 1 or more"):
            RateLimit(qps=qps, burst=burst)

    @pytest.mark.parametrize(("qps", "burst"), [("1", 1), (True, 1), (1, 1.5), (1, True)])
    def test_a_limit_that_is_no_number_is_rejected(self, qps: float, burst: int) -> None:
        with pytest.raises(UsageError, match="needs numbers"):
            RateLimit(qps=qps, burst=burst)
