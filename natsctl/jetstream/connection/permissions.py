"""Permission violations that a server reports, and the errors that they become."""

import re

import msgspec

from natsctl.errors import PermissionDeniedError

_VIOLATION = re.compile(
    r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE
)


_CONSUMER = re.compile(r"(\.CONSUMER\.[^.]+\.[^.]+)\.natsctl-[^.]+")


class PermissionViolation(msgspec.Struct, frozen=True):
    """A denied publish, or a denied subscription.

    `subject` is in lower case, because nats-py reports no other form.
    """

    publishing: bool
    subject: str

    def concerns(self, subject: str) -> bool:
        """Return whether the violation is about *subject*."""
        return self.subject == subject.lower()


def violation(error: Exception) -> PermissionViolation | None:
    """Return the violation in an error of nats-py, or None if the error is another one."""
    match = _VIOLATION.search(str(error))
    if match is None:
        return None
    return PermissionViolation(match[1].lower() == "publish", match[2].lower())


def may_not_publish(subject: str) -> PermissionDeniedError:
    """Return the error of a denied publish; `*` is the name of a consumer, which is random."""
    subjects = _CONSUMER.sub(r"\1.*", subject)
    return PermissionDeniedError(
        f"this NATS user may not publish to {subjects}: allow it in the user's permissions"
    )


def may_not_subscribe(subject: str) -> PermissionDeniedError:
    """Return the error of a denied subscription."""
    return PermissionDeniedError(
        f"this NATS user may not subscribe to {subject}: allow it in the user's permissions"
    )
