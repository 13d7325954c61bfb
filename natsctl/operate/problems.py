"""The reasons of errors, and the daemons that did not answer, as every surface shows them."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from natsctl.daemon.client import OldDaemonError
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    PermissionDeniedError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.telemetry.hiding import hidden

Reason = Literal[
    "refused",
    "not_found",
    "conflict",
    "invalid",
    "old_daemon",
    "no_daemon",
    "unavailable",
    "timeout",
    "signed_out",
    "failed",
]
"""The reason of an error; the page shows each of them differently."""

_REASONS: tuple[tuple[type[Exception], Reason], ...] = (
    (PermissionDeniedError, "refused"),
    (NotFoundError, "not_found"),
    (StoreMissingError, "not_found"),
    (ConflictError, "conflict"),
    (InvalidKeyError, "invalid"),
    (InvalidObjectError, "invalid"),
    (UsageError, "invalid"),
    (StoreTimeoutError, "timeout"),
    (TimeoutError, "timeout"),
    (NoDaemonError, "no_daemon"),
    (NatsctlError, "unavailable"),
)


class Partial(msgspec.Struct, frozen=True):
    """The number of daemons that answered and should answer, and the names of the silent ones."""

    answered: int
    expected: int
    missing: list[str]


class Problem(msgspec.Struct, frozen=True):
    """The reason of an error, and a text for people without secrets."""

    reason: Reason
    message: str


def problem_of(error: Exception) -> Problem:
    """Return the reason and the text of an error that natsctl raises on purpose."""
    if isinstance(error, OldDaemonError):
        return Problem("old_daemon", hidden(str(error)))
    reasons: Iterator[Reason] = (reason for kind, reason in _REASONS if isinstance(error, kind))
    return Problem(next(reasons, "failed"), hidden(str(error)) or "there was no answer in time")


def missing(expected: Mapping[str, str], answered: set[str]) -> Partial | None:
    """Return which of the *expected* daemons, by id, did not answer; None if all did."""
    names = sorted(name for id_, name in expected.items() if id_ not in answered)
    return Partial(len(expected) - len(names), len(expected), names) if names else None
