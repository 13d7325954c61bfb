"""Who acts, and the pauses of objects and controllers that need this user's permissions only."""

import getpass
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import msgspec

from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import (
    DECODE_ERRORS,
    InvalidObjectError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents
from natsctl.model.bookkeeping import PAUSES, controller_record
from natsctl.model.documents import Document
from natsctl.model.keys import matches
from natsctl.model.objects import PAUSED
from natsctl.model.pause import Pause, active_pause
from natsctl.model.store import Stored
from natsctl.model.times import time_text

ANSWER_S = 2.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=36_500)


class Resumption(msgspec.Struct, frozen=True):
    """The pause that `resume_object` ended, if any, and whether the object exists."""

    pause: Pause | None
    exists: bool


def new_pause(*, reason: str = "", duration: timedelta | None = None) -> Pause:
    """Return a pause from now on, by the user of this process."""
    now, text = datetime.now(UTC), " ".join(reason.split())
    until = "" if duration is None else time_text(now + duration)
    return Pause(reason=text, since=time_text(now), until=until, by=local_user())


def duration_in(text: str) -> timedelta:
    """Return a duration such as 90s, 30m, 2h or 1d12h, above 0; raises `UsageError`."""
    if not re.fullmatch(r"(?:\d+[dhms])+", text):
        raise UsageError(f"{text!r} is no duration: write 90s, 30m, 2h or 1d12h")
    parts = re.findall(r"(\d+)([dhms])", text)
    try:
        duration = timedelta(seconds=sum(int(number) * _UNITS_S[unit] for number, unit in parts))
    except (OverflowError, ValueError):  # also a number with too many digits
        duration = timedelta.max
    if not timedelta(0) < duration <= _LONGEST:
        raise UsageError(f"{text[:40]!r} must be above 0s and at most {_LONGEST.days}d")
    return duration


def in_cluster(kind: str, key: str) -> UsageError:
    """Return the error for an object in a cluster, whose annotation kubectl writes."""
    namespace, _, name = key.rpartition("/")
    namespace_flag = f" -n {namespace}" if namespace else ""
    return UsageError(
        f"{key} is a {kind} in a cluster: pause it with kubectl annotate {kind.lower()} {name}"
        f"{namespace_flag} natsctl.io/paused=true, and resume it with natsctl.io/paused-"
    )


def local_user() -> str:
    """Return the user of this process and its machine, such as `ann@desk`."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return "".join(f"{name}@{socket.gethostname()}".split())


# ---- objects


async def pause_object(connection: Connection, bucket: str, key: str, pause: Pause) -> None:
    """Set the annotation of an object; a pause that it has is replaced."""
    store = BucketStore(Bucket(connection, bucket))

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{bucket} has no {key}")
        return documents.render(documents.with_labels(_object(current), {}, {PAUSED: pause.text}))

    await rewrite(store, key, change, seen=await read(store, key))


async def resume_object(connection: Connection, bucket: str, key: str) -> Resumption:
    """Remove the pause of an object; purge an object that was deleted while it was paused.

    In a bucket with a history of 1, only a daemon may know that a deleted object was paused.
    """
    store = BucketStore(Bucket(connection, bucket))
    pause: Pause | None = None
    stored = await read(store, key)
    if stored is not None:
        pause = _active(documents.annotation(_object(stored), PAUSED))

        def change(current: Stored | None) -> bytes:
            if current is None:
                raise NotFoundError(f"{bucket} has no {key} any more: resume it again")
            document = _object(current)
            if documents.annotation(document, PAUSED) is None:
                return current.value
            has_others = len(documents.annotations_of(document)) > 1
            patch: Document = {"annotations": {PAUSED: None} if has_others else None}
            return documents.render(documents.merge_patch(document, {"metadata": patch}))

        await rewrite(store, key, change, seen=stored)
        return Resumption(pause, exists=True)
    history = await store.history(key)
    states = [state for state in history if isinstance(state, Stored)]
    if history and not isinstance(history[-1], Stored):
        if states:
            with suppress(InvalidObjectError):
                pause = _active(documents.annotation(documents.parse(states[-1].value), PAUSED))
        elif not history[-1].purged:
            pause = Pause()
    if pause is not None:
        await store.delete(key, purge=True)
    return Resumption(pause, exists=False)


def _active(text: str | None) -> Pause | None:
    return active_pause(text, datetime.now(UTC))


def _object(stored: Stored) -> Document:
    try:
        document = documents.parse(stored.value)
    except InvalidObjectError:
        document = {}
    if "spec" in document or documents.metadata_of(document):
        return document
    raise UsageError(
        f"{stored.key} has no metadata, so that no annotation can pause it: "
        "pause the whole controller with --all"
    )


# ---- controllers


async def pause_controller(connection: Connection, controller: str, pause: Pause) -> None:
    """Pause all keys of a controller, also before its daemon starts."""
    bucket, name = Bucket(connection, PAUSES.bucket), controller_record(controller)
    await bucket.ensure(PAUSES)
    store, value = BucketStore(bucket), pause.text.encode()
    await rewrite(store, name, lambda _: value, seen=await read(store, name))


async def resume_controller(connection: Connection, controller: str) -> Pause | None:
    """Resume a controller, and return its pause; None if it is not paused."""
    pause = await paused_controller(connection, controller)
    with suppress(NotFoundError, StoreMissingError):
        store = BucketStore(Bucket(connection, PAUSES.bucket))
        await store.delete(controller_record(controller))
    return pause


async def paused_controller(connection: Connection, controller: str) -> Pause | None:
    """Return the pause of a whole controller; None if it is not paused."""
    store, stored = BucketStore(Bucket(connection, PAUSES.bucket)), None
    with suppress(StoreMissingError):
        stored = await read(store, controller_record(controller))
    return _active(None if stored is None else stored.value.decode(errors="replace"))


# ---- who acts


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
