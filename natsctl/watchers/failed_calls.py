"""Decides what follows a failed call of a watcher, and reports the failure."""

import logging
import math
from collections.abc import Callable

import msgspec

from natsctl.core.history import HandlerFailures
from natsctl.core.planning.record import current_plan
from natsctl.core.retry import Drop, Retry, RetryPolicy, Stop, backoff, decide_retry
from natsctl.errors import RetryAfter, StoreError
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.logger import get_logger
from natsctl.watchers.merged_changes import ObjectChange
from natsctl.watchers.retries import RetryDequeuePolicy
from natsctl.watchers.watcher import ResourceWatcher

log = get_logger(__name__)

BACKOFF_S, BACKOFF_MAX_S = 0.005, 1000.0  # for policies that set no delay


class Policies(msgspec.Struct):
    """The decisions after a failure."""

    error_handler: Callable[[Exception], None] | None
    retry: RetryPolicy
    dequeue: RetryDequeuePolicy | None


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A watcher that was added; a watcher that was added twice has two registrations.

    `number` counts the watchers of the same class in the controller.
    """

    watcher: ResourceWatcher
    number: int = 1

    @property
    def name(self) -> str:
        """The name of the watcher, which is the same in every process of the controller."""
        name = type(self.watcher).__name__
        return name if self.number == 1 else f"{name} {self.number}"


class FailedCalls(msgspec.Struct, frozen=True, eq=False):
    """The failed calls of the watchers of one resource kind."""

    resource_kind: str
    policies: Policies
    _logged: HandlerFailures = msgspec.field(
        default_factory=lambda: HandlerFailures(log, logging.WARNING)
    )

    def succeeded(self, change: ObjectChange, registration: Registration) -> None:
        """Note a successful call, so that the next failure is logged with its traceback."""
        self._logged.succeeded((change.key, registration))

    def delay(
        self, change: ObjectChange, registration: Registration, error: Exception, failures: int
    ) -> float | None:
        """Return the seconds until the retry, or None if the call is dropped.

        A call that failed because of a store is never dropped; it waits until the store is back.
        Raises *error* if the retry policy stops the controller.
        """
        if isinstance(error, RetryAfter):
            return error.delay_s
        plan = current_plan.get()
        if plan is not None and not plan.continuous:
            plan.dropped(change.key, error)
            return None
        self._report(change, registration, error)
        if classify(error) is ErrorClass.PERMANENT:
            return None
        match decide_retry(self.policies.retry, error, failures):
            case Retry(None):
                return backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            case Retry(after):
                return after
            case Drop():
                return math.inf if isinstance(error, StoreError) else None
            case Stop():
                raise error

    def retries(self, error: Exception, failures: int) -> bool:
        """Return whether the policy retries a call that has failed so many times."""
        return isinstance(decide_retry(self.policies.retry, error, failures), Retry)

    def drops(self, failed: ObjectChange, error: Exception, change: ObjectChange) -> bool:
        """Return whether *change* makes the retry of the *failed* change superfluous."""
        if self.policies.dequeue is None:
            return True
        new_object, retry_object = change.new or change.old, failed.new or failed.old
        if new_object is None or retry_object is None:
            return False
        return self.policies.dequeue(change.action, new_object, failed.action, retry_object, error)

    def _report(self, change: ObjectChange, registration: Registration, error: Exception) -> None:
        self._logged.failed(
            (change.key, registration),
            "a watcher failed",
            error,
            kind=self.resource_kind,
            key=change.key,
            watcher=type(registration.watcher).__name__,
            action=change.action.value.lower(),
        )
        if self.policies.error_handler is not None:
            try:
                self.policies.error_handler(error)
            except (Exception, SystemExit):
                log.exception("the error handler failed", kind=self.resource_kind)
