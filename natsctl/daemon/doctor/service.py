"""Whether daemons can be asked over NATS, and what this user may ask them."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress

from natsctl.controller.controller import Controller
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.peers import conflict
from natsctl.daemon.api.verbs import NAME, Verb
from natsctl.daemon.doctor.finding import Finding, ok, warning
from natsctl.daemon.operator import Guest
from natsctl.errors import NatsctlError
from natsctl.jetstream.bucket.permission_probe import PROBE, Probe
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.service.server import ROOT, control_subjects

SERVICE, ASKING = "service", "asking daemons"

Questions = Mapping[str, Sequence[Verb]]
"""What daemons can be asked about each controller, by its name."""


def questions(controllers: Iterable[Controller | Guest]) -> Questions:
    """Return what a daemon that runs these can be asked about each."""
    return {
        each.name: tuple(Verb) if isinstance(each, Controller) else (Verb.STATUS,)
        for each in controllers
    }


async def check_service(connection: Connection, asked: Questions) -> AsyncIterator[Finding]:
    """Give whether this user's daemon could answer, and what the user may ask another's.

    Controllers work without either. Nothing is asked that does anything; see `Probe`.
    """
    if asked:
        yield await _service(Probe(connection), asked)
        yield await _asking(Probe(connection), asked)


async def check_modes(connection: Connection, controllers: Iterable[str]) -> AsyncIterator[Finding]:
    """Give a warning for each controller whose daemons sync its keys more than once.

    Nothing is found if this user may not ask daemons.
    """
    try:
        daemons = await Daemons.find(connection)
    except NatsctlError:
        return
    for name in controllers:
        if name in daemons.controllers:
            with suppress(NatsctlError):
                why = conflict(await daemons.status(name))
                if why:
                    found, _, advice = why.partition(": ")
                    yield warning(f"modes {name}", found, advice)


async def _service(probe: Probe, asked: Questions) -> Finding:
    subjects = [verb.subject(name) for name, verbs in asked.items() for verb in verbs]
    denied = await probe.subscribing(*control_subjects(NAME, PROBE), *subjects)
    if not denied:
        return ok(SERVICE, f"{NAME}, of {', '.join(asked)}")
    listed = ", ".join(each.replace(PROBE, "*") for each in denied)
    return warning(
        SERVICE,
        f"a daemon of this user cannot be asked: it may not subscribe to {listed}",
        f"natsctl status, explain, tree, resync and gc need it: allow it in the user's "
        f"permissions, subscribe: {listed}",
    )


async def _asking(probe: Probe, asked: Questions) -> Finding:
    """Return what may be asked; who runs a daemon and asks none need not be allowed anything."""
    looking = f"{ROOT}.INFO.{NAME}"
    lost = await probe.requesting(looking)
    verbs = {verb.subject(name): verb for name, all_of in asked.items() for verb in all_of}
    denied = await probe.requesting(*verbs)
    allowed = [verb for verb in Verb if any(verbs[at] is verb for at in verbs.keys() - denied)]
    if lost and set(allowed) - {Verb.STATUS}:  # for a status daemons ask each other
        return warning(
            ASKING,
            f"this user may ask daemons and not look for them: not publish to {looking}",
            f"allow it in the user's permissions, publish: {looking}",
        )
    if denied and not lost and not allowed:
        return warning(
            ASKING,
            f"this user may look for daemons and ask nothing: not publish to {', '.join(denied)}",
            f"allow what it needs in the user's permissions, publish: {', '.join(denied)}",
        )
    if lost or not allowed:
        return ok(ASKING, "not by this user: only those need it who call natsctl status, resync, …")
    some = f"; not everything: {', '.join(denied)}" if denied else ""
    return ok(ASKING, ", ".join(allowed) + some)
