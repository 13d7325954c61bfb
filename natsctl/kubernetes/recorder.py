"""Records events about cluster objects as events.k8s.io/v1 Events, which `kubectl describe` shows.

Repeated events become one Event with a series. Warnings are sent before other events, and all
controllers of a process share one rate. Recording never blocks a controller: events that can't be
sent are dropped and counted.
"""

import re
import secrets
import socket
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from natsctl.errors import ConflictError, NotFoundError, PermissionDeniedError
from natsctl.kubernetes.api_errors import RBAC
from natsctl.kubernetes.transport import MERGE_PATCH, Transport
from natsctl.model.manifests import Reference
from natsctl.model.store import UNGUARDED, EventType, SyncNote, WriteGuard
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.outbox import Outbox, SendingPace

PAUSE_S = 0.05  # between two Events of a process, because writes of objects are more important
SERIES_S = 360.0  # a repeat within this time belongs to the same series
ACTION = "Sync"  # the `action` of every Event
NOTE_MAX_BYTES = 1024  # this limit and the next ones are the API's
REASON_MAX = 128
INSTANCE_MAX = 128
CONTROLLER_MAX = 63
NAME_MAX = 253
CLUSTER_NAMESPACE = "default"  # of Events about cluster-scoped objects

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class KubeEvent(msgspec.Struct, frozen=True, gc=False):
    """An Event that was sent or is pending. It happened `count` times from `first` to `last`."""

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
        return self.about.namespace or CLUSTER_NAMESPACE

    def itself(self) -> "KubeEvent":
        return self

    def again(self, event: "KubeEvent") -> "KubeEvent":
        return replace(event, count=event.count + 1, last=self.last)


class KubeRecorder:
    """Sends a controller's Events in the background; a `Recorder`; made by `Kube.recorder`.

    The recorders of a process share a *pace*; by default, each has its own.
    """

    def __init__(
        self,
        transport: Transport,
        controller: str,
        guard: WriteGuard = UNGUARDED,
        pace: SendingPace | None = None,
    ) -> None:
        pace = SendingPace(PAUSE_S) if pace is None else pace
        self.outbox = Outbox(self._send, repeat_s=SERIES_S, pace=pace)
        self._transport = transport
        self._guard = guard
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", controller)[:CONTROLLER_MAX].strip("_.-")
        self._controller = f"natsctl/{name or 'controller'}"
        self._instance = f"{name}-{socket.gethostname()}"[:INSTANCE_MAX]

    @property
    def dropped(self) -> int:
        return self.outbox.counts["dropped"]

    def counted(self) -> dict[tuple[str, str], int]:
        return self.outbox.counted("kubernetes")

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the name in Kubernetes
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,  # noqa: ARG002 - an event of a cluster has no place for it
    ) -> None:
        if not self._guard.may_record(key):
            return
        message, now = hidden(message), datetime.now(UTC).isoformat(timespec="microseconds")
        for about in regarding:
            event = KubeEvent(_event_name(about.name), about, type, reason, message, now, now)
            self.outbox.add(
                f"{about.kind} {about.namespace}/{about.name}",
                (about.kind, about.namespace, about.name, about.uid, type.value, reason, message),
                first=event.itself,
                again=event.again,
                urgent=type is EventType.WARNING,
            )

    async def _send(self, event: KubeEvent) -> KubeEvent:
        path = f"/apis/events.k8s.io/v1/namespaces/{event.namespace}/events"
        try:
            if not event.sent:
                await self._create(path, event)
            else:
                await self._update_series(path, event)
        except ConflictError:
            await self._update_series(path, event)
        except NotFoundError:
            await self._create(path, event)
        return replace(event, sent=True)

    async def _create(self, path: str, event: KubeEvent) -> None:
        # older servers require a namespace even if the object has none
        regarding = replace(event.about, namespace=event.namespace)
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": event.namespace},
            "eventTime": event.first,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": ACTION,
            "reason": event.reason[:REASON_MAX],
            "regarding": regarding,
            "note": _shortened(event.message),
            "type": event.type.value,
            **_series(event),
        }
        await self._transport.call("POST", path, body=msgspec.json.encode(body))

    async def _update_series(self, path: str, event: KubeEvent) -> None:
        try:
            await self._transport.call(
                "PATCH",
                f"{path}/{event.name}",
                body=msgspec.json.encode(_series(event)),
                content_type=MERGE_PATCH,
                safe=True,
            )
        except PermissionDeniedError as denial:
            raise PermissionDeniedError(
                f"may not patch events in namespace {event.namespace!r}; {RBAC}"
            ) from denial


def _series(event: KubeEvent) -> dict[str, object]:
    if event.count == 1:
        return {}
    return {"series": {"count": event.count, "lastObservedTime": event.last}}


def _event_name(object_name: str) -> str:
    """Return a unique name for an Event. The object's name may be invalid as an Event's name."""
    suffix = f".{secrets.token_hex(8)}"
    stem = object_name[: NAME_MAX - len(suffix)].rstrip("-.")
    return (stem if _DNS_NAME.fullmatch(stem) else "natsctl") + suffix


def _shortened(message: str) -> str:
    data = message.encode()
    if len(data) <= NOTE_MAX_BYTES:
        return message
    return data[: NOTE_MAX_BYTES - len("…".encode())].decode("utf-8", "ignore") + "…"
