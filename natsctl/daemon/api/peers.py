"""Finds other daemons that run the same controller, and warns if they are in each other's way.

Without a leader election or shards, each of two daemons syncs every key; so does each if they run
the controller in different modes. A daemon introduces itself to the others when it starts, at
every return of the connection, and seldom in between. It asks where `natsctl status` asks, for
which a restricted user needs a permission; without it the others still warn, and so does `status`.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

import msgspec

from natsctl.core.coordination.lease import Workload
from natsctl.core.coordination.participant import foreign
from natsctl.daemon.api.messages import ControllerStatus, Process
from natsctl.daemon.api.mode import Mode
from natsctl.errors import DECODE_ERRORS, PermissionDeniedError, StoreError
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.client import ask_all

log = logging.getLogger(__name__)

EVERY_S = 60.0  # for each daemon that is known: the traffic does not grow with their number
SOON_S = 0.5  # until it is asked again while our own service does not answer yet
ANSWER_S = 2.0
PEERS_MAX = 100
ADVICE = "run all its daemons with --leader-elect, or all with --shard"


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon as it introduces itself; version 0.1 does not know its mode."""

    daemon: Process
    mode: Mode = Mode.UNKNOWN
    work: Workload = Workload()

    def disturbs(self, other: "Presence") -> bool:
        """Return whether both sync the same keys at the same time."""
        modes = {self.mode, other.mode}
        return Mode.ALONE in modes or (len(modes) > 1 and Mode.UNKNOWN not in modes)


class Peers:
    """The other daemons that run a controller, as far as one daemon knows them.

    Args:
        controller: its name.
        own: how this daemon introduces itself.
        subject: where daemons are asked about the controller.
    """

    def __init__(self, controller: str, own: Presence, subject: str) -> None:
        self._controller = controller
        self._own = own
        self._subject = subject
        self._others: dict[str, Presence] = {}
        self._warned: frozenset[str] = frozenset()
        self._lost = asyncio.Event()

    def meet(self, asked: bytes) -> bytes | None:
        """Answer a daemon that introduces itself; None if it is something else that is asked."""
        presence = _presence(asked) if asked else None
        if presence is None:
            return None
        if len(self._others) < PEERS_MAX or presence.daemon.id in self._others:
            self._know(*self._others.values(), presence)
        return msgspec.json.encode(self._own)

    async def watch(self, connection: Connection) -> None:
        """Introduce this daemon to the others, again and again, until cancelled."""
        with connection.on_lost(lambda _: self._lost.set()):
            while True:
                self._lost.clear()
                try:
                    await connection.wait_connected()
                    known = await self._ask(connection)
                except PermissionDeniedError as error:
                    log.info("%s: other daemons cannot be looked for: %s", self._controller, error)
                    return
                except StoreError as error:
                    log.debug("%s: no daemon answers: %s", self._controller, error)
                    known = False
                await self._pause(EVERY_S * (1 + len(self._others)) if known else SOON_S)

    async def _ask(self, connection: Connection) -> bool:
        """Ask all daemons; return whether our own was among those that answered."""
        payload = msgspec.json.encode(self._own)
        answers = await ask_all(connection, self._subject, payload, timeout_s=ANSWER_S)
        found = [_presence(answer.data) for answer in answers if answer.error is None]
        known = [presence for presence in found if presence is not None]
        self._know(*known[: PEERS_MAX + 1])
        return any(presence.daemon.id == self._own.daemon.id for presence in known)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        except TimeoutError:
            pass

    def _know(self, *present: Presence) -> None:
        """Remember the daemons that run now, and warn of new ones."""
        own = self._own
        self._others = {at.daemon.id: at for at in present if at.daemon.id != own.daemon.id}
        disturbing = {key: at for key, at in self._others.items() if own.disturbs(at)}
        if disturbing.keys() - self._warned:
            log.warning("%s: %s", self._controller, self._conflict(disturbing.values()))
        elif self._warned and not disturbing:
            log.info("%s: no other daemon is in the way of this one any more", self._controller)
        self._warned = frozenset(disturbing)

    def _conflict(self, others: Iterable[Presence]) -> str:
        own, listed = self._own, sorted(others, key=lambda at: str(at.daemon))
        for other in listed:
            if not own.work.same(other.work):
                return foreign(self._controller, str(other.daemon), other.work, own.work)
        shown = ", ".join(f"{at.daemon}{_option(at)}" for at in listed[:5])
        more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""  # noqa: PLR2004 - as shown
        return (
            f"every key is synced more than once: {shown}{more} run it too, and this daemon "
            f"{own.mode.option}: {ADVICE}"
        )


def conflict(found: Sequence[ControllerStatus]) -> str:
    """Return why daemons that run one controller sync its keys more than once, empty if not."""
    ways = [at.mode.partition(" ")[0].replace("standby", "leader") for at in found if at.mode]
    alone = ways.count(Mode.ALONE)
    if alone < 2 and len(set(ways)) < 2:  # noqa: PLR2004 - one daemon, or all in one way
        return ""
    why = f"{alone} daemons run alone" if len(set(ways)) == 1 else "daemons run in different modes"
    return f"every key is synced more than once, for {why}: {ADVICE}"


def _option(presence: Presence) -> str:
    return f" ({presence.mode.option})" if presence.mode else ""


def _presence(text: bytes) -> Presence | None:
    try:
        return msgspec.json.decode(text, type=Presence)
    except DECODE_ERRORS:
        return None
