"""What a check has found, and what is to be done about it."""

from enum import Enum

import msgspec


class Result(Enum):
    """How what was checked is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one check has found; `advice` says what to do, and is empty where all is well."""

    check: str
    result: Result
    found: str
    advice: str = ""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """From where on what works is told as a warning.

    Attributes:
        slow_s: seconds that a request takes there and back.
        skew_s: seconds by which two clocks differ, beyond what can be measured.
        full: the share of a limit that is in use.
    """

    slow_s: float = 0.25
    skew_s: float = 2.0
    full: float = 0.8


def ok(check: str, found: str) -> Finding:
    """Return that it is as it should be."""
    return Finding(check, Result.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    """Return that it works, though not as well as it could, or not for long."""
    return Finding(check, Result.WARNING, found, advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Return that controllers will not work like this."""
    return Finding(check, Result.FAILED, found, advice)
