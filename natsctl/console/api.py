"""Answers the questions of the page, by name."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import msgspec

from natsctl.console.actions import Actions, MakePlan
from natsctl.console.answers import answer, encoded
from natsctl.console.key import KeyViews, draft
from natsctl.console.keys import Keys, KeyTable, Query
from natsctl.console.overview import Overview
from natsctl.daemon.messages import Verb
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.model.bookkeeping import PAUSES, controller_record
from natsctl.model.keys import check_key
from natsctl.operate.fleet import Fleet
from natsctl.operate.statuses import problem_of
from natsctl.time_limit import happens

FEEDS_MAX = 32  # views that are open at a time
PING_S = 5.0  # the longest silence between two notices, apart from the time of a read
READ_S: Mapping[str, float] = {"garbage": PING_S, "buckets": PING_S}
"""Seconds between two reads of a view that is open; a second for the others."""


class Question(Query, frozen=True, kw_only=True):
    """What the page asks about; each answer needs some of the fields."""

    view: str = "home"
    controller: str = ""
    bucket: str = ""
    key: str = ""
    kind: str = ""
    from_: int | None = msgspec.field(default=None, name="from")
    to: int | None = None


NEEDED: Mapping[str, str] = {
    "key": "key",
    "diff": "key",
    "draft": "bucket key",
    "manifest": "controller kind key",
    "recording": "controller key",
    "garbage": "controller",
}


class Console:
    """The answers of one console, over one connection."""

    def __init__(
        self, connection: Connection, *, version: str, planners: Mapping[str, MakePlan]
    ) -> None:
        self._connection = connection
        self._version = version
        self._plans = sorted(planners)
        self._fleet = Fleet(connection)
        self._overview = Overview(self._fleet)
        self._keys = Keys(connection, self._overview)
        self._views = views = KeyViews(self._fleet, self._keys)
        self.act = Actions(self._fleet, self._keys, planners).act
        self._feeds: set[asyncio.Event] = set()  # set to look at the view at once
        self._stopping = False
        self._answers: dict[str, Callable[[Question], Awaitable[object]]] = {
            "session": self._session,
            "home": lambda _: self._overview.home(),
            "buckets": lambda _: self._overview.buckets(),
            "keys": self._table,
            "key": lambda asked: views.view(asked.controller, asked.key, asked.bucket),
            "diff": lambda asked: views.comparison(
                asked.controller, asked.bucket, asked.key, asked.from_, asked.to
            ),
            "draft": lambda asked: draft(connection, asked.bucket, check_key(asked.key)),
            "recording": lambda asked: views.recording(asked.controller, asked.key),
            "manifest": lambda asked: views.manifest(asked.controller, asked.kind, asked.key),
            "garbage": self._garbage,
        }

    async def answer(self, name: str, parameters: Mapping[str, str]) -> object:
        return await self._answer(name, _question(parameters))

    async def _answer(self, name: str, asked: Question) -> object:
        if name not in self._answers:
            raise NotFoundError(f"the console has no answer {name}")
        _check(name, asked)
        return await self._answers[name](asked)

    async def live(
        self, parameters: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, dict[str, object]], None]:
        """Yield the name and the data of each notice about a view, until the console stops.

        `state` has the state of the connection, first of all and whenever it changes. `changed`
        says that the view is to be read again, and `ping` nothing. Raises `NotFoundError` if there
        is no such view, and `NatsctlError` if too many are open.
        """
        asked, clock = _question(parameters), asyncio.get_running_loop().time
        if asked.view not in self._answers:
            raise NotFoundError(f"the console has no view {asked.view}")
        if len(self._feeds) >= FEEDS_MAX:
            raise NatsctlError(f"{FEEDS_MAX} pages of the console are open: close some")
        look, told, last, silent_since = asyncio.Event(), (False, -1), b"", clock()
        self._feeds.add(look)
        try:
            with self._connection.on_lost(lambda _: look.set()):
                while not self._stopping:
                    state = self._connection.state()
                    if (state.connected, state.losses) != told:
                        told, silent_since = (state.connected, state.losses), clock()
                        error = "" if state.connected else state.last_error or ""
                        notice = {"connected": state.connected, "since_s": state.since_s}
                        yield "state", {**notice, "error": error}
                    present = await self._present(asked)
                    if present != last and last:
                        silent_since = clock()
                        yield "changed", {}
                    elif clock() - silent_since >= PING_S:
                        silent_since = clock()
                        yield "ping", {}
                    last = present
                    await happens(look, within_s=READ_S.get(asked.view, 1.0))
                    look.clear()
        finally:
            self._feeds.remove(look)

    async def _present(self, asked: Question) -> bytes:
        try:
            async with asyncio.timeout(PING_S):
                if asked.view == "keys":
                    name = asked.controller
                    revisions = await self._keys.revisions(name, asked.bucket)
                    row = (await self._overview.report(name)).row if name else None
                    return encoded((revisions, row))
                present = msgspec.to_builtins(await self._answer(asked.view, asked))
                return encoded({**present, "as_of": 0.0})
        except (NatsctlError, TimeoutError) as error:
            return encoded(problem_of(error))

    def stop(self) -> None:
        self._stopping = True
        for look in self._feeds:
            look.set()

    async def close(self) -> None:
        await self._keys.close()
        await self._overview.close()
        await self._fleet.close()

    async def _session(self, _: Question) -> object:
        state = self._connection.state()
        identity = await self._views.identity() if state.connected else None
        return answer(
            version=self._version,
            connected=state.connected,
            server=state.server,
            since_s=state.since_s,
            error="" if state.connected else state.last_error or "",
            os_user="" if identity is None else identity.local,
            nats_user="" if identity is None else identity.nats,
            plans=self._plans,
        )

    async def _table(self, asked: Question) -> KeyTable:
        controller = asked.controller
        if not controller:
            return await self._keys.of_bucket(asked.bucket, asked)
        table = await self._keys.of_controller(controller, asked, asked.bucket)
        identity, off = await self._views.identity(), dict[str, str]()
        subjects = {
            "resync": Verb.RESYNC.subject(controller),
            "whole": f"$KV.{PAUSES.bucket}.{controller_record(controller)}",
        }
        if not table.bucket:
            off["pause"] = "they are in a cluster: use kubectl"
        elif table.rows:
            subjects["pause"] = f"$KV.{table.bucket}.{table.rows[0].key}"
        off |= {
            action: refused
            for action, subject in subjects.items()
            if (refused := identity.refusal(subject))
        }
        return msgspec.structs.replace(table, off=off)

    async def _garbage(self, asked: Question) -> object:
        name, identity = asked.controller, await self._views.identity()
        plan = await (await self._fleet.daemons()).plan(name)
        return answer(
            controller=name,
            orphans=plan.orphans,
            refused=plan.refused,
            more=plan.more,
            off=identity.refusal(Verb.GC_APPLY.subject(name)),
        )


def _question(parameters: Mapping[str, str]) -> Question:
    given = {name: text for name, text in parameters.items() if text}
    try:
        return msgspec.convert(given, Question, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the query is not valid: {error}") from error


def _check(name: str, asked: Question) -> None:
    for field in NEEDED.get(name, "").split():
        if not getattr(asked, field):
            raise UsageError(f"name a {field}")
    if name in {"keys", "key", "diff"} and not (asked.controller or asked.bucket):
        raise UsageError("name a controller or a bucket")
