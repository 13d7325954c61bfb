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
    from natsctl.resource.resource import Resource as Resource
    from natsctl.resource.resource import ResourceStore as ResourceStore
    from natsctl.resource.stream import ErrorAction as ErrorAction
    from natsctl.resource.stream import ErrorHandler as ErrorHandler
    from natsctl.resource.stream import Event as Event
    from natsctl.resource.stream import EventKind as EventKind
    from natsctl.resource.stream import EventStream as EventStream
    from natsctl.resource.stream import Key as Key
    from natsctl.resource.stream import PerKey as PerKey
    from natsctl.resource.stream import RateLimiter as RateLimiter
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
