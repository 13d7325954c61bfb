"""Checks whether daemons can serve requests over NATS, and whether this user may send them."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import makes_secondaries
from natsctl.core.hosted import Hosted
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.peers import conflict
from natsctl.daemon.api.verbs import NAME, Verb
from natsctl.daemon.doctor.finding import CheckFinding, ok, permit, warning
from natsctl.daemon.operator import Guest
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.probe import PROBE, Probe
from natsctl.jetstream.service import ROOT, control_subjects
from natsctl.telemetry.hiding import enumerated

RECORDINGS = (Verb.RECORDING, Verb.RECORDING_UNMASKED)
SHOWN_MAX = 5  # keys in a finding
SERVICE, ASKING = "service", "asking daemons"

Verbs = Mapping[str, Sequence[Verb]]
"""The verbs that a daemon answers, by controller."""


def verbs_of(controllers: Iterable[Controller | Guest]) -> Verbs:
    """Return the verbs that a daemon with these controllers answers."""
    return {controller.name: _verbs_of(controller) for controller in controllers}


def _verbs_of(controller: Controller | Guest) -> Sequence[Verb]:
    match controller:
        case Controller() if makes_secondaries(type(controller)):
            return tuple(Verb)
        case Controller() | Hosted():
            return tuple(verb for verb in Verb if not verb.collects)
        case _:
            return (Verb.STATUS,)


async def check_service(connection: Connection, verbs: Verbs) -> AsyncIterator[CheckFinding]:
    """Yield whether a daemon of this user can serve requests, and which ones the user may send.

    Controllers work without both. The checks only try permissions, see `Probe`.
    """
    if verbs:
        yield await _serving(Probe(connection), verbs)
        yield await _requesting(Probe(connection), verbs)


async def check_modes(
    connection: Connection, controllers: Iterable[str]
) -> AsyncIterator[CheckFinding]:
    """Yield a warning for each controller whose keys several daemons sync at once.

    There is no finding if this user may not send requests to daemons.
    """
    try:
        daemons = await Daemons.find(connection)
    except NatsctlError:
        return
    for name in controllers:
        if name in daemons.controllers:
            with suppress(NatsctlError):
                statuses = await daemons.status(name)
                quarantined = sorted({key for status in statuses for key in status.quarantined})
                if quarantined:
                    keys = enumerated(quarantined, SHOWN_MAX)
                    found = f"processes died during the syncs of {keys}, which are quarantined"
                    advice = "read the logs of those processes, then natsctl resync BUCKET/KEY"
                    yield warning(f"keys {name}", found, advice)
                for trouble in sorted({status.trouble for status in statuses} - {""}):
                    advice = "see the daemon's log"
                    yield warning(f"daemons of {name}", trouble, advice)
                reason = conflict(statuses)
                if reason:
                    found, _, advice = reason.partition(": ")
                    yield warning(f"modes {name}", found, advice)


async def _serving(probe: Probe, verbs: Verbs) -> CheckFinding:
    subjects = [verb.subject(name) for name, offered in verbs.items() for verb in offered]
    denied = await probe.subscribing(*control_subjects(NAME, PROBE), *subjects)
    if not denied:
        return ok(SERVICE, f"{NAME}, of {', '.join(verbs)}")
    general = [subject.replace(PROBE, "*") for subject in denied]
    return warning(
        SERVICE,
        f"a daemon of this user gets no requests: it may not subscribe to {', '.join(general)}",
        f"for natsctl status, explain, tree, resync and gc, {permit('subscribe', general)}",
    )


async def _requesting(probe: Probe, verbs: Verbs) -> CheckFinding:
    """Return the verbs that this user may request; a user who only runs daemons needs none."""
    find = f"{ROOT}.INFO.{NAME}"
    cannot_find = await probe.requesting(find)
    subjects = {verb.subject(name): verb for name, offered in verbs.items() for verb in offered}
    denied = await probe.requesting(*subjects)
    may_request = {subjects[subject] for subject in subjects.keys() - denied}
    allowed = [verb for verb in Verb if verb in may_request]
    if cannot_find and set(allowed) - {Verb.STATUS}:  # daemons themselves need the status
        return warning(
            ASKING,
            f"this user may send requests to daemons but not find them: not publish to {find}",
            permit("publish", [find]),
        )
    if denied and not cannot_find and not allowed:
        return warning(
            ASKING,
            f"this user may find daemons but send no requests: not publish to {', '.join(denied)}",
            f"for the requests that the user needs, {permit('publish', denied)}",
        )
    if cannot_find or not allowed:
        return ok(
            ASKING, "not permitted to this user: only commands such as natsctl status need it"
        )
    exceptions = f"; not everything: {', '.join(denied)}" if denied else ""
    return ok(ASKING, ", ".join(allowed) + exceptions)
