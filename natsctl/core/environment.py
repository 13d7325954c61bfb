"""What the controllers of a process share: terms, a plan, recordings, and claims on keys.

Who runs controllers sets it; a controller looks at it once, when it opens, and keeps it in
`Host.environment`. It's ambient because a program of yours may make controllers that nobody else
sees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

import msgspec

from natsctl.core.coordination.term import Leadership
from natsctl.core.plan.record import PlanRecord
from natsctl.core.quarantine import ClaimedKeys
from natsctl.core.record.recordings import Recordings


class Environment(msgspec.Struct, frozen=True):
    """The environment of controllers.

    Attributes:
        leadership: the terms in which they work; None if this process runs them alone.
        plan: the record of their writes, none of which is stored; None outside of a plan.
        recordings: keeps what their syncs read and wrote; None records nothing.
        claims: notes the keys being synced, for the next process if this one dies.
    """

    leadership: Leadership | None = None
    plan: PlanRecord | None = None
    recordings: Recordings | None = None
    claims: ClaimedKeys | None = None

    @property
    def sharing(self) -> Leadership | None:
        """The leadership if this process shares its keys with others."""
        return self.leadership if self.leadership and self.leadership.shared else None

    async def led(self) -> None:
        """Wait until this process may work."""
        if self.leadership is not None:
            await self.leadership.begun.wait()


_environment = ContextVar("environment", default=Environment())  # noqa: B039 - it is frozen


def environment() -> Environment:
    """Return the environment of this task."""
    return _environment.get()


def enter(**changes: object) -> Token[Environment]:
    """Change the environment of this context and of the tasks that it creates from now on."""
    return _environment.set(msgspec.structs.replace(_environment.get(), **changes))


@contextmanager
def within(**changes: object) -> Iterator[None]:
    """Change the environment while the context lasts."""
    token = enter(**changes)
    try:
        yield
    finally:
        _environment.reset(token)


def planning() -> bool:
    """Return whether this code runs in a plan, in which no write is stored.

    Does your handler call something else, such as an HTTP API? Ask this first, and skip the call.
    """
    return _environment.get().plan is not None
