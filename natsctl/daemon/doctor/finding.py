"""Findings: the result of a check, and advice on how to correct a problem."""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum

import msgspec

SKEW_S = 2.0  # the difference of two clocks that is a warning, beyond the error of the measurement


class Result(Enum):
    """The result of a check; controllers don't work if one is failed."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """The finding of one check; `advice` is empty if the result is ok."""

    check: str
    result: Result
    found: str
    advice: str = ""


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


def skew(check: str, before: datetime, remote: datetime, after: datetime) -> CheckFinding:
    """Return the finding about a remote clock.

    The clock showed *remote* between the local times *before* and *after*. The difference is
    certain only beyond these two times, so a slow answer never causes a warning.
    """
    ahead_s = (remote - after).total_seconds()
    behind_s = (before - remote).total_seconds()
    skew_s = max(ahead_s, behind_s)
    if skew_s <= SKEW_S:
        return ok(check, "equal to the local clock")
    return warning(
        check,
        f"{skew_s:.0f} s {'ahead of' if ahead_s > behind_s else 'behind'} the local clock",
        "set both clocks by NTP: ages, deletion times and credentials depend on them",
    )
