"""Events about objects of a cluster, where `kubectl describe` shows them: events.k8s.io/v1.

What repeats within a while is one Event with a series. Nothing here blocks a controller, and what
cannot be sent is dropped and counted.
"""

import re
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import msgspec
from msgspec.structs import replace

from natsctl.errors import ConflictError, NotFoundError, PermissionDeniedError
from natsctl.kubernetes.http.wire import Wire
from natsctl.model.manifests import Reference
from natsctl.model.recorder import QUIET_S, EventType, Outbox, sending
from natsctl.model.write_guard import UNGUARDED, WriteGuard
from natsctl.telemetry.hiding import hidden

PAUSE_S = 0.05  # between two Events: objects come first
SERIES_S = 360.0  # an event that repeats within this time belongs to the same series
ACTION = "Sync"  # what a controller does that it tells of
NOTE_MAX_BYTES = 1024  # here and below: what the API takes
REASON_MAX = 128
INSTANCE_MAX = 128
CONTROLLER_MAX = 63
NAME_MAX = 253
CLUSTER_NAMESPACE = "default"  # of events about what has no namespace

MERGE_PATCH = "application/merge-patch+json"

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class KubeEvent(msgspec.Struct, frozen=True):
    """An Event as it was told, or is to be; `count` times until `last`."""

    name: str
    about: Reference
    type: EventType
    reason: str
    message: str
    first: str
    last: str
    count: int = 1
    sent: bool = False

    @property
    def namespace(self) -> str:
        """Where the Event is kept."""
        return self.about.namespace or CLUSTER_NAMESPACE


class KubeRecorder:
    """Sends a controller's Events, in the background; a `Recorder`. Made by `recording`."""

    def __init__(self, wire: Wire, controller: str, guard: WriteGuard = UNGUARDED) -> None:
        self.outbox = Outbox(self._send, repeat_s=SERIES_S, pause_s=PAUSE_S, quiet_s=QUIET_S)
        self._wire = wire
        self._guard = guard
        legal = re.sub(r"[^A-Za-z0-9_.-]", "-", controller)[:CONTROLLER_MAX].strip("_.-")
        self._controller = f"natsctl/{legal or 'controller'}"
        self._instance = f"{legal}-{socket.gethostname()}"[:INSTANCE_MAX]

    @property
    def dropped(self) -> int:
        """How many Events were not sent."""
        return self.outbox.dropped

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """See `Recorder.event`: one for each object; without any there is nothing to tell."""
        if not self._guard.may_record(key):
            return
        message = hidden(message)
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        for about in regarding:
            name = _event_name(about.name)
            first = partial(KubeEvent, name, about, type, reason, message, now, now)
            self.outbox.add(
                f"{about.kind} {about.namespace}/{about.name}",
                (about.kind, about.namespace, about.name, about.uid, type, reason, message),
                first=first,
                again=lambda told: replace(told, count=told.count + 1, last=now),
            )

    async def _send(self, event: KubeEvent) -> KubeEvent:
        """Add the Event, or say that it goes on; it may be there, or gone, against what we know."""
        path = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        try:
            if not event.sent:
                await self._create(path, event)
            else:
                await self._count(path, event)
        except ConflictError:
            await self._count(path, event)
        except NotFoundError:
            await self._create(path, event)
        return replace(event, sent=True)

    async def _create(self, path: str, event: KubeEvent) -> None:
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": event.namespace},
            "eventTime": event.first,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": ACTION,
            "reason": event.reason[:REASON_MAX],
            "regarding": replace(event.about, namespace=event.namespace),  # or older servers refuse
            "note": _shortened(event.message),
            "type": event.type.value,
            **_series(event),
        }
        await self._wire.call("POST", path, body=msgspec.json.encode(body))

    async def _count(self, path: str, event: KubeEvent) -> None:
        try:
            await self._wire.call(
                "PATCH",
                f"{path}/{event.name}",
                body=msgspec.json.encode(_series(event)),
                content_type=MERGE_PATCH,
                safe=True,
            )
        except PermissionDeniedError as denial:
            raise PermissionDeniedError(
                f"may not patch events in namespace {event.namespace!r}; `natsctl rbac` prints "
                "the permissions that are needed"
            ) from denial


def _series(event: KubeEvent) -> dict[str, object]:
    """Return what tells how often, of an event that was more than once."""
    if event.count == 1:
        return {}
    return {"series": {"count": event.count, "lastObservedTime": event.last}}


def _event_name(of: str) -> str:
    """Return a new name for an Event about an object of this name; it may be no legal one."""
    suffix = f".{secrets.token_hex(8)}"
    stem = of[: NAME_MAX - len(suffix)].rstrip("-.")
    return (stem if _DNS_NAME.fullmatch(stem) else "natsctl") + suffix


def _shortened(message: str) -> str:
    """Return as much of the text as an Event takes."""
    data = message.encode()
    if len(data) <= NOTE_MAX_BYTES:
        return message
    return data[: NOTE_MAX_BYTES - len("…".encode())].decode("utf-8", "ignore") + "…"


@asynccontextmanager
async def recording(
    wire: Wire, controller: str, guard: WriteGuard = UNGUARDED
) -> AsyncIterator[KubeRecorder]:
    """Return a recorder that sends while the context lasts, and what is left at its end."""
    recorder = KubeRecorder(wire, controller, guard)
    async with sending(recorder.outbox):
        yield recorder
