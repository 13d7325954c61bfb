"""Resource: one kind as streams of events to mark done, and as a read-only store.

One key's journey: the informer sees a change and adds the key to the workqueue of every
subscription. A subscriber that is ready for another event takes the key, and what it is told is
decided then, from the newest state in the cache and from what this subscriber was told before:
upsert, delete, or nothing. `done` settles the key as the subscriber's error handler says.

Seed: a Cilium-style resource package, whose channels are streams here and whose hive is a `with`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.resource.event import Event as Event
    from natsctl.resource.event import EventKind as EventKind
    from natsctl.resource.event import Key as Key
    from natsctl.resource.failing import ErrorAction as ErrorAction
    from natsctl.resource.failing import ErrorHandler as ErrorHandler
    from natsctl.resource.failing import PerKey as PerKey
    from natsctl.resource.failing import RateLimiter as RateLimiter
    from natsctl.resource.resource import EventStream as EventStream
    from natsctl.resource.resource import Resource as Resource
    from natsctl.resource.store import ResourceStore as ResourceStore
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
