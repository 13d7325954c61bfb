"""Decides why no daemon answers a request, before the request is sent."""

from natsctl.console.answers import OldDaemonError
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.mode import Mode
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import NatsctlError, UsageError


async def check_offered(daemons: Daemons, verb: Verb, controller: str) -> None:
    """Raise an error that states why no daemon answers the verb; return if one does.

    Raises `UsageError` if the controller has no such verb or only plans, and `OldDaemonError` if
    its daemons are too old.
    """
    if daemons.offers(verb, controller):
        return
    statuses = await daemons.status(controller)
    if all(status.mode == Mode.DRY_RUN for status in statuses):
        raise UsageError(
            f"{controller} only plans, with natsctl run --dry-run: no daemon answers {verb}"
        )
    if verb.collects and daemons.offers(Verb.RESYNC, controller):
        raise UsageError(f"{controller} makes no secondaries: it has no garbage")
    if verb.acts and not daemons.offers(Verb.RESYNC, controller):
        raise NatsctlError(f"{controller} runs, but no daemon leads it now: try again")
    versions = ", ".join(sorted({status.daemon.version for status in statuses}))
    raise OldDaemonError(
        f"no daemon of {controller} knows {verb}: the daemons have version {versions}, or the "
        "controller is of a sort without it"
    )
