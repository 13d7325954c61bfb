"""Who acts, and what NATS lets this user publish."""

from contextlib import suppress

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.jetstream.connection import Connection
from natsctl.model.keys import matches
from natsctl.operate.pauses import local_user

ANSWER_S = 2.0


class _Subjects(msgspec.Struct, frozen=True):
    allow: list[str] = []
    deny: list[str] = []


class _Permissions(msgspec.Struct, frozen=True):
    publish: _Subjects = _Subjects()


class _Data(msgspec.Struct, frozen=True):
    user: str = ""
    permissions: _Permissions = _Permissions()


class _UserInfo(msgspec.Struct, frozen=True):
    data: _Data = _Data()


class Identity(msgspec.Struct, frozen=True):
    """The user of this machine, and the NATS user; empty if the server has no users."""

    local: str
    nats: str
    publish: _Subjects = _Subjects()

    def refusal(self, subject: str) -> str:
        """Return why the user may not send to a subject; empty if that's allowed or unknown."""
        denied = any(matches(pattern, subject) for pattern in self.publish.deny)
        allow = self.publish.allow
        if denied or (allow and not any(matches(pattern, subject) for pattern in allow)):
            return f"your NATS user may not publish to {subject}"
        return ""

    def __str__(self) -> str:
        """Return the users as a phrase, such as `ann@desk (NATS user ops)`."""
        return f"{self.local} (NATS user {self.nats})" if self.nats else self.local


async def identity_on(connection: Connection) -> Identity:
    """Return who acts through a connection; without an answer, the NATS user is empty."""
    data = _Data()
    with suppress(StoreError, *DECODE_ERRORS):
        reply = await connection.request("$SYS.REQ.USER.INFO", b"", timeout_s=ANSWER_S)
        data = msgspec.json.decode(reply.data, type=_UserInfo).data
    return Identity(local_user(), data.user, data.permissions.publish)
