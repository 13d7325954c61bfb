"""Findings: the result of a check, and advice on how to correct a problem."""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum

import msgspec


class Result(Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The finding of one check; `advice` is empty if the result is ok."""

    check: str
    result: Result
    found: str
    advice: str = ""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds beyond which a check warns.

    Attributes:
        slow_s: the time of a request and its answer, in seconds.
        skew_s: the difference of two clocks, in seconds, beyond the error of the measurement.
        full: the used share of a limit.
    """

    slow_s: float = 0.25
    skew_s: float = 2.0
    full: float = 0.8


def ok(check: str, found: str) -> CheckFinding:
    """Return a finding without a problem."""
    return CheckFinding(check, Result.OK, found)


def warning(check: str, found: str, advice: str) -> CheckFinding:
    """Return the finding of a problem with which controllers still work."""
    return CheckFinding(check, Result.WARNING, found, advice)


def failed(check: str, found: str, advice: str) -> CheckFinding:
    """Return the finding of a problem with which controllers don't work."""
    return CheckFinding(check, Result.FAILED, found, advice)


def permit(action: str, subjects: Iterable[str]) -> str:
    """Return the advice to let the user `publish` or `subscribe` to these subjects."""
    return f"allow it in the user's permissions, {action}: {', '.join(subjects)}"


def skew(
    check: str, before: datetime, remote: datetime, after: datetime, limit_s: float
) -> CheckFinding:
    """Return the finding about a remote clock.

    The clock showed *remote* between the local times *before* and *after*. The difference is
    certain only beyond these two times, so a slow answer never causes a warning.
    """
    ahead_s = (remote - after).total_seconds()
    behind_s = (before - remote).total_seconds()
    skew_s = max(ahead_s, behind_s, 0.0)
    if skew_s <= limit_s:
        return ok(check, "equal to the local clock")
    word = "ahead of" if ahead_s > behind_s else "behind"
    return warning(
        check,
        f"{skew_s:.0f} s {word} the local clock",
        "set both clocks by NTP: ages, deletion times and credentials depend on them",
    )
