"""Sends requests to the daemons that run controllers, over NATS."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from natsctl.daemon.messages import (
    NAME,
    STOP,
    ControllerPlan,
    ControllerStatus,
    KeyExplanation,
    KeyPlans,
    Manifest,
    Mode,
    ObjectName,
    Queuing,
    Recorded,
    RecordingPart,
    Verb,
)
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, NatsctlError, NoDaemonError, NotFoundError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.service import (
    LIMIT_S,
    EndpointInfo,
    Info,
    NoServiceError,
    ask_all,
    services,
)
from natsctl.model.plans import Kept, Orphan, Removed
from natsctl.model.reports import Branch, PrimarySource, merged

T = TypeVar("T")

ACT_S = LIMIT_S + 2.0  # beyond the time limit of a daemon's handler
APPLIED_MAX = 200  # orphans in one request
FIND_S = 2.0  # for the answers of all daemons
NO_DAEMON = "no daemon answers: start one with `natsctl run`"
UNANSWERED = "no daemon answered for its owner"  # why an orphan is kept


class OldDaemonError(NoDaemonError):
    """Raised if the daemons of a controller do not know a verb; a newer version does."""


class Daemons:
    """The daemons that answered when `find` looked for them.

    Requests raise `NotFoundError` if no daemon runs the controller, `NoDaemonError` if none leads
    it, `OldDaemonError`, `UsageError` if the controller only plans or is of a sort without the
    verb, and the error that the daemon answers.
    """

    def __init__(self, connection: Connection, infos: Sequence[Info]) -> None:
        self._connection = connection
        self._infos = infos
        self._sources: dict[str, list[PrimarySource]] = {}

    @classmethod
    async def find(cls, connection: Connection) -> "Daemons":
        infos = await services(connection, NAME, timeout_s=FIND_S)
        if not infos:
            raise NoDaemonError(NO_DAEMON)
        return cls(connection, infos)

    @property
    def controllers(self) -> list[str]:
        endpoints = (endpoint for info in self._infos for endpoint in info.endpoints)
        names = (endpoint.metadata.get("controller") for endpoint in endpoints)
        return sorted({name for name in names if name is not None})

    def controller(self, name: str | None) -> str:
        """Return *name*, or the name of the only controller if *name* is None.

        Raises `UsageError` if *name* is None and there are several controllers, and `NotFoundError`
        if no daemon runs the controller.
        """
        controllers = self.controllers
        if name is None:
            if len(controllers) == 1:
                return controllers[0]
            raise UsageError(f"set --controller to one of {', '.join(controllers)}")
        if name not in controllers:
            advice = did_you_mean(name, controllers) or f": there are {', '.join(controllers)}"
            raise NotFoundError(f"no daemon runs controller {name}{advice}")
        return name

    @property
    def collecting(self) -> list[str]:
        return [name for name in self.controllers if self.offers(Verb.GC_PLAN, name)]

    def offers(self, verb: Verb, controller: str) -> bool:
        return bool(self._offered(verb, controller))

    def running(self, controller: str) -> dict[str, str]:
        return {
            info.id: f"{info.metadata.get('host', '?')}:{info.metadata.get('pid', '?')}"
            for info, _ in self._offered(Verb.STATUS, controller)
        }

    async def sources(self, controllers: Sequence[str]) -> dict[str, list[PrimarySource]]:
        """Return where the primaries of each controller are, as far as it says; asked once."""
        unknown = [name for name in controllers if name not in self._sources]
        requests = (self.status(name) for name in unknown)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        for name, answer in zip(unknown, answers, strict=True):
            statuses = answer if isinstance(answer, list) else []
            places = (source for status in statuses for source in status.sources)
            self._sources[name] = list(dict.fromkeys(places))
        return {name: self._sources[name] for name in controllers}

    async def controllers_with(self, key: str, among: Sequence[str]) -> list[str]:
        """Return which of these controllers have *key*, or, if none has it, know something of it.

        Raises the first error if there are no such controllers either.
        """
        requests = (self.explain(name, key) for name in among)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        explained = [one for answer in answers if isinstance(answer, list) for one in answer]
        names = {one.controller for one in explained if one.present}
        names = names or {one.controller for one in explained if one.past}
        for failure in answers:
            if not names and isinstance(failure, BaseException):
                raise failure
        return sorted(names)

    async def status(self, controller: str) -> list[ControllerStatus]:
        statuses = await self._ask_all(Verb.STATUS, controller, b"", ControllerStatus)
        return sorted(statuses, key=lambda status: str(status.daemon))

    async def explain(self, controller: str, key: str) -> list[KeyExplanation]:
        """Return the explanation of the key by each daemon.

        If the controller is sharded, it's that by the daemon that the key is assigned to, or all of
        them while the key is assigned to no daemon.
        """
        answers = await self._ask_all(Verb.EXPLAIN, controller, key.encode(), KeyExplanation)
        answers = [answer for answer in answers if answer.here] or answers
        return sorted(answers, key=lambda answer: str(answer.daemon))

    async def tree(self, controller: str, key: str) -> Branch:
        return merged(await self._ask_all(Verb.TREE, controller, key.encode(), Branch))

    async def manifest(self, controller: str, kind: str, key: str) -> Manifest:
        request = msgspec.json.encode(ObjectName(kind, key))
        return (await self._ask_all(Verb.MANIFEST, controller, request, Manifest))[0]

    async def plan_keys(self, controller: str, keys: Sequence[str]) -> KeyPlans:
        return (await self._ask_all(Verb.PLAN, controller, " ".join(keys).encode(), KeyPlans))[0]

    async def resync(self, controller: str, keys: Sequence[str]) -> list[Queuing]:
        return await self._ask_all(Verb.RESYNC, controller, " ".join(keys).encode(), Queuing)

    async def record(self, controller: str, keys: Sequence[str], *, stop: bool) -> list[Recorded]:
        words = [STOP, *keys] if stop else keys
        return await self._ask_all(Verb.RECORD, controller, " ".join(words).encode(), Recorded)

    async def recording(self, controller: str, key: str, *, masked: bool = True) -> bytes:
        verb = Verb.RECORDING if masked else Verb.RECORDING_UNMASKED
        answers = await self._ask_all(verb, controller, key.encode(), RecordingPart)
        first = max(answers, key=lambda answer: answer.started)
        texts = [first.text]
        for part in range(1, first.parts):
            request = f"{key} {part}".encode()
            texts += [
                answer.text
                for answer in await self._ask_all(verb, controller, request, RecordingPart)
                if (answer.daemon, answer.started) == (first.daemon, first.started)
            ]
        if len(texts) != first.parts:
            raise NatsctlError(f"{key} was recorded again while it was fetched: try again")
        return "".join(texts).encode()

    async def plan(self, controller: str) -> ControllerPlan:
        return (await self._ask_all(Verb.GC_PLAN, controller, b"", ControllerPlan))[0]

    async def apply(self, plan: ControllerPlan) -> Removed:
        """Delete the orphans of the plan, and return those that were deleted and those kept.

        The orphans are sent in batches, so that each request is short. If the controller is
        sharded, each daemon deletes the objects that its own keys owned.
        """
        removed: list[Orphan] = []
        kept: list[Kept] = []
        for first in range(0, len(plan.orphans), APPLIED_MAX):
            orphans = plan.orphans[first : first + APPLIED_MAX]
            payload = msgspec.json.encode(msgspec.structs.replace(plan, orphans=orphans))
            for result in await self._ask_all(Verb.GC_APPLY, plan.controller, payload, Removed):
                removed += result.orphans
                kept += result.kept
        reported = {*removed, *(one.orphan for one in kept)}
        kept += [Kept(orphan, UNANSWERED) for orphan in plan.orphans if orphan not in reported]
        return Removed(tuple(removed), tuple(kept))

    async def accept(self, plan: ControllerPlan) -> ControllerPlan:
        payload = msgspec.json.encode(msgspec.structs.replace(plan, orphans=()))
        return (await self._ask_all(Verb.GC_ACCEPT, plan.controller, payload, ControllerPlan))[0]

    async def _ask_all(self, verb: Verb, controller: str, payload: bytes, kind: type[T]) -> list[T]:
        """Return the successful answers; raises the first error if there are none.

        One answer is expected from each queue group, and one from each daemon else.
        """
        offered = self._offered(verb, controller)
        if not offered:
            raise await self._refusal(verb, controller)
        groups = {endpoint.queue_group or number for number, (_, endpoint) in enumerate(offered)}
        try:
            answers = await ask_all(
                self._connection,
                verb.subject(controller),
                payload,
                expected=len(groups),
                timeout_s=ACT_S if verb.acts or verb is Verb.PLAN else FIND_S,
            )
        except NoServiceError as error:
            raise _stopped(verb, controller) from error
        results = [answer for answer in answers if answer.error is None] or answers[:1]
        try:
            return [msgspec.json.decode(answer.result(), type=kind) for answer in results]
        except DECODE_ERRORS as error:
            raise NatsctlError(
                f"cannot decode a daemon's answer; the daemon may have another version: {error}"
            ) from error

    async def _refusal(self, verb: Verb, controller: str) -> NatsctlError:
        self.controller(controller)
        statuses = await self.status(controller) if verb is not Verb.STATUS else []
        if statuses and all(status.mode == Mode.DRY_RUN for status in statuses):
            return UsageError(
                f"{controller} only plans, with natsctl run --dry-run: no daemon answers {verb}"
            )
        if verb.startswith("record"):
            return UsageError(
                f"{controller} keeps no recordings: only the syncs of a Controller, a "
                "ManagedController and an InformerController are recorded"
            )
        if verb.collects and self.offers(Verb.RESYNC, controller):
            return UsageError(f"controller {controller} makes no secondaries: it has no garbage")
        if not statuses or (verb.acts and not self.offers(Verb.RESYNC, controller)):
            return _stopped(verb, controller)
        versions = ", ".join(sorted({status.daemon.version for status in statuses}))
        return OldDaemonError(
            f"no daemon of {controller} knows {verb}: the daemons have version {versions}, or the "
            "controller is of a sort without it"
        )

    def _offered(self, verb: Verb, controller: str) -> list[tuple[Info, EndpointInfo]]:
        endpoints = ((info, endpoint) for info in self._infos for endpoint in info.endpoints)
        return [pair for pair in endpoints if pair[1].subject == verb.subject(controller)]


def _stopped(verb: Verb, controller: str) -> NoDaemonError:
    if verb.acts:
        return NoDaemonError(f"controller {controller} runs, but no daemon leads it now")
    return NoDaemonError(
        f"controller {controller} runs, but no daemon answers {verb} requests about it"
    )
