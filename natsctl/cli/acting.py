"""`natsctl resync`, `natsctl pause` and `natsctl resume`."""

from collections.abc import Sequence
from typing import Annotated

from natsctl.cli.command import (
    App,
    Labels,
    NamedController,
    SomeObjects,
    exit_status,
    exit_with,
    option,
    report_error,
)
from natsctl.cli.terminal import write_line, write_notice
from natsctl.errors import NotFoundError, UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.buckets import Selection
from natsctl.operate.fleet import Acted, Fleet, open_fleet
from natsctl.operate.objects import Name, parse_names
from natsctl.operate.pauses import duration_in, new_pause

app = App()

Whole = Annotated[bool, option("--all | The whole controller of --controller")]
Failing = Annotated[bool, option("--failing | Only keys that fail, as natsctl status names them")]


async def _chosen(
    fleet: Fleet, words: Sequence[str], selector: str, controller: str | None, *, failing: bool
) -> list[Name]:
    """Return the objects that words name, or that labels or failures choose."""
    if not selector and not failing:
        return parse_names(words)
    names = await fleet.failing(controller) if failing else []
    if selector:
        buckets = await Selection.of(words, selector).open(fleet.connection)
        chosen = [Name(bucket.name, key) for bucket, keys in buckets for key in keys]
        names = [name for name in chosen if name in names] if failing else chosen
    elif words:
        if len(words) > 1 or "/" in words[0]:
            raise UsageError("--failing chooses keys: give a bucket alone, or no name")
        names = [name for name in names if name.bucket == words[0]]
    if not names:
        raise NotFoundError("no key matches")
    return names


def _show(acted: Acted) -> None:
    for line in acted.done:
        write_line(line)
    for error in acted.failed:
        report_error(str(error))
    for note in acted.notes:
        write_notice(note)
    exit_with(map(exit_status, acted.failed))


@app.add(
    "natsctl pause greetings/shop --reason 'waits for the new disk'",
    "natsctl pause greetings -l tier=edge --for 2h",
    "natsctl pause --all -c greetings",
    reason="TEXT | The reason, for people",
    lasts="--for TIME | Resume after this time, such as 30m, 2h or 1d",
)
async def pause(
    options: NatsOptions,
    *,
    objects: SomeObjects = None,
    everything: Whole = False,
    controller: NamedController = None,
    selector: Labels = "",
    failing: Failing = False,
    reason: str = "",
    lasts: str | None = None,
) -> None:
    """Hold back the syncs of keys or of a controller.

    A paused key is neither synced nor garbage collected; it's synced once when it's resumed. A sync
    under way goes on to its end. The pause survives restarts: it's the annotation natsctl.io/paused
    of the object, or a record of the controller.
    """
    words = objects or []
    _check_whole(words, "pause", whole=everything, chosen=failing or bool(selector))
    if not everything and not failing and controller is not None:
        raise UsageError(
            "-c needs --all: the pause of an object holds for every controller that syncs it"
        )
    new = new_pause(reason=reason, duration=None if lasts is None else duration_in(lasts))
    async with open_fleet(options) as fleet:
        if everything:
            _show(await fleet.pause_controller(controller, new))
        else:
            names = await _chosen(fleet, words, selector, controller, failing=failing)
            _show(await fleet.pause(names, new))


@app.add(
    "natsctl resume greetings/shop",
    "natsctl resume greetings -l tier=edge",
    "natsctl resume --all -c greetings",
)
async def resume(
    options: NatsOptions,
    *,
    objects: SomeObjects = None,
    everything: Whole = False,
    controller: NamedController = None,
    selector: Labels = "",
    failing: Failing = False,
) -> None:
    """Sync paused keys or a paused controller again.

    A key is synced once if it changed while it was paused. A key whose object was deleted while it
    was paused is cleaned up.
    """
    words = objects or []
    _check_whole(words, "resume", whole=everything, chosen=failing or bool(selector))
    async with open_fleet(options) as fleet:
        if everything:
            _show(await fleet.resume_controller(controller))
        else:
            names = await _chosen(fleet, words, selector, controller, failing=failing)
            _show(await fleet.resume(names, controller))


def _check_whole(words: Sequence[str], command: str, *, whole: bool, chosen: bool) -> None:
    if whole and (words or chosen):
        raise UsageError("--all is for the whole controller: name no object, or leave --all out")
    if not whole and not chosen:
        all_keys = f"; natsctl {command} --all -c CONTROLLER is for a whole controller"
        parse_names(words, otherwise=all_keys)


@app.add(
    "natsctl resync greetings/shop greetings/market",
    "natsctl resync --failing",
    "natsctl resync -c greetings",
)
async def resync(
    options: NatsOptions,
    *,
    objects: SomeObjects = None,
    controller: NamedController = None,
    selector: Labels = "",
    failing: Failing = False,
) -> None:
    """Sync keys now.

    The daemon that leads the controller enqueues the keys, even those that failed permanently. The
    command does not wait: natsctl describe shows the result.
    """
    all_keys = "; natsctl resync -c CONTROLLER is for all keys of a controller"
    words, chosen = objects or [], bool(selector) or failing
    names = parse_names(words, otherwise=all_keys) if words and not chosen else []
    async with open_fleet(options) as fleet:
        if chosen:
            names = await _chosen(fleet, words, selector, controller, failing=failing)
        _show(await fleet.resync(names, controller))
