"""Resource: one kind as streams of events to mark done, and as a read-only store.

One key's journey: the informer sees a change and adds the key to the workqueue of every
subscription. A subscriber that is ready for another event takes the key, and what it is told is
decided then, from the newest state in the cache and from what this subscriber was told before:
upsert, delete, or nothing. `done` settles the key as the subscriber's error handler says.

Seed: a Cilium-style resource package, whose channels are streams here and whose hive is a `with`.
"""

from natsctl.resource.event import Event, EventKind, Key
from natsctl.resource.failing import ErrorAction, ErrorHandler, PerKey, RateLimiter
from natsctl.resource.resource import EventStream, Resource
from natsctl.resource.store import ResourceStore

__all__ = [
    "ErrorAction",
    "ErrorHandler",
    "Event",
    "EventKind",
    "EventStream",
    "Key",
    "PerKey",
    "RateLimiter",
    "Resource",
    "ResourceStore",
]
