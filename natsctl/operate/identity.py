"""Names the user who acts in the console, for the events."""

from contextlib import suppress

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.jetstream.connection.connection import Connection
from natsctl.operate.pauses import local_user

ANSWER_S = 2.0


class _Data(msgspec.Struct, frozen=True):
    user: str = ""


class _UserInfo(msgspec.Struct, frozen=True):
    data: _Data = _Data()


class Identity(msgspec.Struct, frozen=True):
    """The user of this machine, and the NATS user; empty if the server has no users."""

    local: str
    nats: str

    def __str__(self) -> str:
        """Return the users as a phrase, such as `ann@desk (NATS user ops)`."""
        return f"{self.local} (NATS user {self.nats})" if self.nats else self.local


async def identity_on(connection: Connection) -> Identity:
    """Return who acts through a connection; without an answer, the NATS user is empty."""
    nats = ""
    with suppress(StoreError, *DECODE_ERRORS):
        reply = await connection.request("$SYS.REQ.USER.INFO", b"", timeout_s=ANSWER_S)
        nats = msgspec.json.decode(reply.data, type=_UserInfo).data.user
    return Identity(local_user(), nats)
