"""Finds other daemons that run the same controller, and warns if both sync the same keys.

Two daemons sync the same keys if they run without leader election and sharding, or in different
modes. A daemon introduces itself to the others when it starts, after every reconnect, and at long
intervals. If it may not publish to the subject of `natsctl status`, the others still warn.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from natsctl.core.coordination.lease import Workload, name_taken
from natsctl.core.coordination.shares import Participation
from natsctl.daemon.messages import ADVICE, DAEMONS_SHOWN, DaemonProcess, Mode, Verb
from natsctl.errors import DECODE_ERRORS, PermissionDeniedError, StoreError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.service import ask_all
from natsctl.telemetry.hiding import enumerated
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens


def configured_mode(participation: Participation | None, *, dry_run: bool = False) -> Mode:
    """Return the mode of a daemon with this participation."""
    if dry_run:
        return Mode.DRY_RUN
    if participation is None:
        return Mode.ALONE
    return Mode.SHARED if participation.leadership.shared else Mode.ELECTED


def current_mode(participation: Participation | None, *, dry_run: bool = False) -> str:
    """Return the mode and the daemon's present part in it, as `natsctl status` shows them."""
    mode = configured_mode(participation, dry_run=dry_run)
    if participation is None or dry_run:
        return mode.value
    state = participation.state()
    if mode is Mode.ELECTED:
        return "leader" if state.works else "standby"
    if state.identity not in state.members:
        return mode.value
    members = sorted(state.members)
    text = f"shard {members.index(state.identity) + 1} of {len(members)}"
    text += f", {state.shares[state.identity]} shares"
    if state.draining:
        text += f", gives up {state.draining} for {state.draining_s:.0f} s"
    return text


log = get_logger(__name__)

EVERY_S = 60.0  # times the number of daemons, so that the traffic doesn't grow with it
SOON_S = 0.5  # until the next attempt while this daemon's own service doesn't answer
ANSWER_S = 2.0
PEERS_MAX = 100


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """The introduction of a daemon; the mode of version 0.1 is unknown."""

    daemon: DaemonProcess
    mode: Mode = Mode.UNKNOWN
    work: Workload = Workload()

    def disturbs(self, other: "Presence") -> bool:
        """Return whether both daemons sync the same keys at the same time."""
        modes = {self.mode, other.mode}
        if Mode.DRY_RUN in modes:
            return False
        return Mode.ALONE in modes or (len(modes) > 1 and Mode.UNKNOWN not in modes)


class Peers:
    """The other daemons that run a controller; *presence* introduces this one."""

    def __init__(self, controller: str, presence: Presence) -> None:
        self._controller = controller
        self._presence = presence
        self._others: dict[str, Presence] = {}
        self._warned: frozenset[str] = frozenset()
        self._lost = asyncio.Event()

    def meet(self, request: bytes) -> bytes | None:
        """Return this daemon's introduction in answer to another's; None for other requests."""
        presence = _presence(request) if request else None
        if presence is None:
            return None
        if len(self._others) < PEERS_MAX or presence.daemon.id in self._others:
            self._update([*self._others.values(), presence])
        return msgspec.json.encode(self._presence)

    async def watch(self, connection: Connection) -> None:
        """Introduce this daemon repeatedly, until cancelled or if the user may not do that."""
        subject, payload = (
            Verb.STATUS.subject(self._controller),
            msgspec.json.encode(self._presence),
        )
        with connection.on_lost(lambda _: self._lost.set()):
            while True:
                self._lost.clear()
                try:
                    await connection.wait_connected()
                    answers = await ask_all(connection, subject, payload, timeout_s=ANSWER_S)
                    present = [_presence(one.data) for one in answers if one.error is None]
                    answered = self._update(present[: PEERS_MAX + 1])
                except PermissionDeniedError as error:
                    log.info(
                        "cannot look for other daemons", controller=self._controller, error=error
                    )
                    return
                except StoreError as error:
                    log.debug("no daemon answers", controller=self._controller, error=error)
                    answered = False
                pause_s = EVERY_S * (1 + len(self._others)) if answered else SOON_S
                await happens(self._lost, within_s=pause_s)

    def _update(self, present: Iterable[Presence | None]) -> bool:
        """Know these daemons from now on; return whether this one is among them."""
        own, name = self._presence, self._controller
        peers = {peer.daemon.id: peer for peer in present if peer is not None}
        answered = peers.pop(own.daemon.id, None) is not None
        self._others = peers
        disturbing = {id_: peer for id_, peer in self._others.items() if own.disturbs(peer)}
        if disturbing.keys() - self._warned:
            shown = sorted(disturbing.values(), key=lambda peer: str(peer.daemon))
            others = [peer for peer in shown if not own.work.same(peer.work)]
            if others:
                reason = name_taken(name, str(others[0].daemon), others[0].work, own.work)
                log.warning("controllers have the same name", reason=reason)
            else:
                names = [
                    f"{peer.daemon} ({peer.mode.option})" if peer.mode else str(peer.daemon)
                    for peer in shown
                ]
                log.warning(
                    "every key is synced more than once",
                    controller=name,
                    daemons=enumerated(names, DAEMONS_SHOWN),
                    this_daemon=own.mode.option,
                    hint=ADVICE,
                )
        elif self._warned and not disturbing:
            log.info("no other daemon syncs the same keys any more", controller=name)
        self._warned = frozenset(disturbing)
        return answered


def _presence(text: bytes) -> Presence | None:
    try:
        return msgspec.json.decode(text, type=Presence)
    except DECODE_ERRORS:
        return None
