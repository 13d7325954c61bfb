"""Resource: one kind as streams of events that a subscriber marks as done, and a read-only store.

The informer adds the key of a changed object to the work queue of every subscription. When a
subscriber takes the key, the subscription compares the newest state in the cache with the last
event of this subscriber, and returns an upsert, a delete, or no event. `done` gives the key back to
the queue, and the subscriber's error handler decides what follows a failure.

Seed: a Cilium-style resource package, with streams in place of channels and a context manager in
place of the hive.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.resource.resource import ErrorAction as ErrorAction
    from natsctl.resource.resource import ErrorHandler as ErrorHandler
    from natsctl.resource.resource import Event as Event
    from natsctl.resource.resource import EventKind as EventKind
    from natsctl.resource.resource import EventStream as EventStream
    from natsctl.resource.resource import Key as Key
    from natsctl.resource.resource import PerKey as PerKey
    from natsctl.resource.resource import RateLimiter as RateLimiter
    from natsctl.resource.resource import Resource as Resource
    from natsctl.resource.resource import ResourceStore as ResourceStore
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
