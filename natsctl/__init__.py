"""natsctl: controllers whose primary resources live in NATS JetStream KV."""

from typing import TYPE_CHECKING, Any

import natsctl.kube as _kube_package  # noqa: F401 - loaded first: `kube` below is a function
import natsctl.kv as _kv_package  # noqa: F401 - likewise `kv`
from natsctl.core.cache import Invalid
from natsctl.core.declare import primary, secondary, tertiary
from natsctl.core.explain import Explanation, Status
from natsctl.core.finalizers import finalized
from natsctl.core.garbage import GarbageLimits, GarbagePlan, Orphan
from natsctl.core.manifests import KubeSecondary
from natsctl.core.owners import KUMORI, OwnerNames
from natsctl.core.retry import (
    Drop,
    Retry,
    RetryPolicy,
    Stop,
    always_retry,
    exponential,
    give_up_after,
    retry_up_to,
)
from natsctl.core.secondary import Secondary
from natsctl.core.slots import Primary, Tertiary
from natsctl.core.visit import Operation
from natsctl.errors import (
    ConflictError,
    ConnectError,
    ExistsError,
    FieldConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    PermanentError,
    PermissionDeniedError,
    QueueShutDownError,
    RetryAfter,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    UsageError,
    WatchBrokenError,
)
from natsctl.model.kinds import Kind, KvKind, kv
from natsctl.model.manifests import KubeKind, KubeMetadata, KubeObject, Manifest, Reference, kube
from natsctl.model.objects import Metadata, Object
from natsctl.model.recorder import EventType
from natsctl.model.store import Action, Change
from natsctl.runtime import Controller, ControllerRuntime

if TYPE_CHECKING:
    from natsctl.kube.options import KubeOptions
    from natsctl.kube.stores import connect_kube
    from natsctl.kv.options import NatsOptions
    from natsctl.kv.stores import connect

__all__ = [
    "KUMORI",
    "Action",
    "Change",
    "ConflictError",
    "ConnectError",
    "Controller",
    "ControllerRuntime",
    "Drop",
    "EventType",
    "ExistsError",
    "Explanation",
    "FieldConflictError",
    "GarbageLimits",
    "GarbagePlan",
    "Invalid",
    "InvalidKeyError",
    "InvalidObjectError",
    "Kind",
    "KubeKind",
    "KubeMetadata",
    "KubeObject",
    "KubeOptions",
    "KubeSecondary",
    "KvKind",
    "Manifest",
    "Metadata",
    "NatsOptions",
    "NatsctlError",
    "NotFoundError",
    "Object",
    "Operation",
    "Orphan",
    "OwnerNames",
    "PermanentError",
    "PermissionDeniedError",
    "Primary",
    "QueueShutDownError",
    "Reference",
    "Retry",
    "RetryAfter",
    "RetryPolicy",
    "Secondary",
    "Status",
    "Stop",
    "StoreDiffersError",
    "StoreError",
    "StoreMissingError",
    "StoreTimeoutError",
    "Tertiary",
    "TooLargeError",
    "UsageError",
    "WatchBrokenError",
    "always_retry",
    "connect",
    "connect_kube",
    "exponential",
    "finalized",
    "give_up_after",
    "kube",
    "kv",
    "primary",
    "retry_up_to",
    "secondary",
    "tertiary",
]

_LATE = {
    "KubeOptions": "natsctl.kube.options",
    "NatsOptions": "natsctl.kv.options",
    "connect": "natsctl.kv.stores",
    "connect_kube": "natsctl.kube.stores",
}


def __getattr__(name: str) -> Any:
    """Load what needs a client only when it is asked for: it takes a tenth of a second or three."""
    if name not in _LATE:
        raise AttributeError(f"module 'natsctl' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only where it is needed

    return getattr(import_module(_LATE[name]), name)
