"""What a server keeps a user from, as it says so and as we say it."""

import re

import msgspec

from natsctl.errors import PermissionDeniedError

_TOLD = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)


class Violation(msgspec.Struct, frozen=True):
    """Something that was tried and is not allowed: publishing, or else subscribing.

    `subject` is in lower case, for nats-py tells no other.
    """

    publishing: bool
    subject: str

    def concerns(self, subject: str) -> bool:
        """Say whether it is about this subject."""
        return self.subject == subject.lower()


def violation(error: Exception) -> Violation | None:
    """Return what the server keeps us from, as nats-py tells it; None: it is another error."""
    told = _TOLD.search(str(error))
    if told is None:
        return None
    return Violation(told[1].lower() == "publish", told[2].lower())


def may_not_publish(subject: str) -> PermissionDeniedError:
    """Return the error of whoever tried to publish there."""
    return PermissionDeniedError(
        f"this NATS user may not publish to {subject}: allow it in the user's permissions"
    )


def may_not_subscribe(subject: str) -> PermissionDeniedError:
    """Return the error of whoever tried to listen there."""
    return PermissionDeniedError(
        f"this NATS user may not subscribe to {subject}: allow it in the user's permissions"
    )
