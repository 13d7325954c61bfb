"""Asking the daemons that run, wherever they are."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from natsctl.core.insight.tree import Branch
from natsctl.daemon.api.messages import (
    ControllerPlan,
    ControllerStatus,
    KeyExplanation,
    Queuing,
)
from natsctl.daemon.api.verbs import NAME, Verb
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, NatsctlError, NoDaemonError, NotFoundError, UsageError
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.client import ask, ask_all, services
from natsctl.jetstream.service.messages import EndpointInfo, Info
from natsctl.jetstream.service.server import LIMIT_S
from natsctl.model.garbage import Kept, Orphan, Removed

T = TypeVar("T")

GRACE_S = 2.0  # more than a daemon takes at most
APPLIED_MAX = 200  # orphans that are removed by one request
FIND_S = 2.0  # within which daemons have said that they are there


class Daemons:
    """The daemons that were found, and what each can be asked; made by `find`.

    What is asked of a controller that nobody runs, or leads, raises `NoDaemonError`; what a daemon
    answers that it cannot do raises the error that it tells, and what is no matter of a controller
    raises `UsageError`: garbage of one that makes no secondaries.
    """

    def __init__(self, connection: Connection, found: Sequence[Info]) -> None:
        self._connection = connection
        self._found = found

    @classmethod
    async def find(cls, connection: Connection) -> "Daemons":
        """Return the daemons that run.

        Raises `NoDaemonError` where there is none, `PermissionDeniedError` where this user may
        not look for them.
        """
        found = await services(connection, NAME, timeout_s=FIND_S)
        if not found:
            raise NoDaemonError("no daemon answers: start one with `natsctl run`")
        return cls(connection, found)

    @property
    def controllers(self) -> list[str]:
        """The names of the controllers that they run, in order."""
        told = (each.metadata.get("controller") for info in self._found for each in info.endpoints)
        return sorted({name for name in told if name is not None})

    def controller(self, name: str | None) -> str:
        """Return the name of the controller that is meant: the only one, where none is named.

        Raises `UsageError` where there are several, `NotFoundError` where nobody runs it.
        """
        known = self.controllers
        if name is None:
            if len(known) == 1:
                return known[0]
            raise UsageError(f"say --controller, one of {', '.join(known)}")
        if name not in known:
            advice = did_you_mean(name, known) or f": there are {', '.join(known)}"
            raise NotFoundError(f"no daemon runs controller {name}{advice}")
        return name

    @property
    def collecting(self) -> list[str]:
        """The names of the controllers whose garbage can be asked for, in order."""
        return [name for name in self.controllers if self._offered(Verb.GC_PLAN, name)]

    async def controllers_with(self, key: str) -> list[str]:
        """Return the names of the controllers that have *key*, in order.

        Only if none has it, the names of those that had it: their last syncs or events are of it.
        Raises the first failure if nobody answers that it has it.
        """
        names = self.controllers
        asked = (self.explain(name, key) for name in names)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        known = [each for answer in answers if isinstance(answer, list) for each in answer]
        having = {each.controller for each in known if each.present}
        found = having or {each.controller for each in known if each.past}
        for failure in answers:
            if not found and isinstance(failure, BaseException):
                raise failure
        return sorted(found)

    async def status(self, controller: str) -> list[ControllerStatus]:
        """Return how it is doing in each daemon, in the order of daemons."""
        found = await self._ask_all(Verb.STATUS, controller, b"", ControllerStatus)
        return sorted(found, key=lambda each: str(each.daemon))

    async def explain(self, controller: str, key: str) -> list[KeyExplanation]:
        """Return what each daemon knows of the key, in the order of daemons.

        Where they share the keys: what the one says that has it; all of them while it moves.
        """
        found = await self._ask_all(Verb.EXPLAIN, controller, key.encode(), KeyExplanation)
        found = [each for each in found if each.here] or found
        return sorted(found, key=lambda each: str(each.daemon))

    async def tree(self, controller: str, key: str) -> Branch:
        """Return the primary with all that was made for it."""
        return await self._ask_one(Verb.TREE, controller, key.encode(), Branch)

    async def resync(self, controller: str, keys: Sequence[str]) -> list[Queuing]:
        """Have these keys synced, or all primaries, by each daemon that leads; it does not wait."""
        return await self._ask_all(Verb.RESYNC, controller, " ".join(keys).encode(), Queuing)

    async def plan(self, controller: str) -> ControllerPlan:
        """Return what garbage there is, each object's owner looked for at its leader."""
        return await self._ask_one(Verb.GC_PLAN, controller, b"", ControllerPlan)

    async def apply(self, plan: ControllerPlan) -> Removed:
        """Have removed what the plan names and nothing else; return what was, and what was not.

        So many at a time that each request is short and soon answered. Daemons that share the keys
        remove what their own keys owned, each of them.
        """
        removed: list[Orphan] = []
        kept: list[Kept] = []
        for first in range(0, len(plan.orphans), APPLIED_MAX):
            orphans = plan.orphans[first : first + APPLIED_MAX]
            asked = msgspec.json.encode(msgspec.structs.replace(plan, orphans=orphans))
            for found in await self._ask_all(Verb.GC_APPLY, plan.controller, asked, Removed):
                removed += found.orphans
                kept += found.kept
        return Removed(tuple(removed), tuple(kept))

    async def accept(self, plan: ControllerPlan) -> ControllerPlan:
        """Have the bucket of primaries accepted as it is; return the plan that holds then.

        A daemon refuses if it holds collection for another reason than *plan* shows.
        """
        asked = msgspec.json.encode(msgspec.structs.replace(plan, orphans=()))
        return (await self._ask_all(Verb.GC_ACCEPT, plan.controller, asked, ControllerPlan))[0]

    async def _ask_one(self, verb: Verb, controller: str, asked: bytes, of: type[T]) -> T:
        self._instances(verb, controller)
        subject = verb.subject(controller)
        answer = await ask(self._connection, subject, asked, timeout_s=LIMIT_S + GRACE_S)
        return _decoded(answer, of)

    async def _ask_all(self, verb: Verb, controller: str, asked: bytes, of: type[T]) -> list[T]:
        """Return the results; raises the first failure where there is no result."""
        expected = self._instances(verb, controller)
        answers = await ask_all(
            self._connection,
            verb.subject(controller),
            asked,
            expected=expected,
            timeout_s=LIMIT_S + GRACE_S if verb.acts else FIND_S,
        )
        results = [answer for answer in answers if answer.error is None] or answers[:1]
        return [_decoded(answer.result(), of) for answer in results]

    def _instances(self, verb: Verb, controller: str) -> int:
        """Count the daemons that answer it; of those in a queue group, one does."""
        found = self._offered(verb, controller)
        count = len({each.queue_group or at for at, each in enumerate(found)})
        if count:
            return count
        if verb.collects and self._offered(Verb.RESYNC, controller):
            raise UsageError(f"controller {controller} makes no secondaries: it has no garbage")
        why = "leads it now" if verb.acts else f"can say {verb} of it"
        raise NoDaemonError(f"controller {controller} runs, but no daemon {why}")

    def _offered(self, verb: Verb, controller: str) -> list[EndpointInfo]:
        subject = verb.subject(controller)
        return [each for at in self._found for each in at.endpoints if each.subject == subject]


def _decoded(answer: bytes, of: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=of)
    except DECODE_ERRORS as error:
        raise NatsctlError(
            f"a daemon's answer makes no sense here; is it of another version? {error}"
        ) from error
