"""The places where a work queue may have a key."""

from typing import TypeAlias

import msgspec

from natsctl.core.queue.ready_queue import Priority, Ready


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A key that waits until a loop time."""

    until: float


class Held(msgspec.Struct, frozen=True, gc=False):
    """A key that a worker has since a loop time, and the priority with which it was taken."""

    since: float
    priority: Priority


Place: TypeAlias = Waiting | Ready | Held
