"""`natsctl status`: what is running, synced, failing."""

from collections import Counter
from collections.abc import Iterator, Sequence

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.operate.find_daemon import NamedOption, name_of
from natsctl.cli.output.entries import NONE
from natsctl.cli.output.printing import Output, OutputOption, write_found, write_table
from natsctl.cli.output.terminal import say
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.messages import ControllerStatus
from natsctl.daemon.api.mode import Mode
from natsctl.daemon.api.peers import conflict
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = commands()

HEADINGS = (
    *("CONTROLLER", "DAEMON", "STATE", "MODE", "PRIMARIES", "KEYS"),
    *("INVALID", "FAILING", "CONTESTED", "QUEUED", "WAITING"),
)


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl status",
        "natsctl status -c greetings -o json | jq '.[].failing'",
    ),
)
@connected
async def status(
    options: NatsOptions, *, controller: NamedOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show what daemons run, and which keys fail.

    MODE is leader or standby with --leader-elect, the shard with --shard, and alone without both.
    If several daemons run alone, each syncs every key, and MODE counts them. KEYS counts the
    primaries that are a daemon's own. QUEUED counts keys that are ready or being synced, WAITING
    those whose next sync has a time: failing keys wait to be retried. CONTESTED counts the keys
    with objects of a cluster whose fields another writer changes back again and again.
    """
    found = await _found(options, controller)
    names = dict.fromkeys(each.controller for each in found)
    write_found(found, output, names=names, table=lambda: _show(found))


async def _found(options: NatsOptions, named: str | None) -> list[ControllerStatus]:
    name = None if named is None else name_of(named)
    async with connect(options) as connection:
        daemons = await Daemons.find(connection)
        names = daemons.controllers if name is None else [daemons.controller(name)]
        return [each for name in names for each in await daemons.status(name)]


def _show(found: Sequence[ControllerStatus]) -> None:
    names = dict.fromkeys(each.controller for each in found)
    alone = Counter(each.controller for each in found if each.mode == Mode.ALONE)
    write_table(HEADINGS, [_row(each, alone[each.controller]) for each in found])
    for name in names:
        why = conflict([each for each in found if each.controller == name])
        if why:
            say(f"{name}: {why}")
    for installation in sorted({each.installation for each in found} - {""}):
        say(f"installation {installation}")
    # what several daemons say alike is told once
    for told in dict.fromkeys(trouble for each in found for trouble in _troubles(each)):
        say(told)


def _row(at: ControllerStatus, alone: int) -> list[str]:
    crowd = f" \N{MULTIPLICATION SIGN}{alone}" if at.mode == Mode.ALONE and alone > 1 else ""
    head = [at.controller, str(at.daemon), at.state, f"{at.mode}{crowd}" or NONE]
    if at.primaries is None or at.queue is None:
        return [*head, *[NONE] * (len(HEADINGS) - len(head))]
    queued = at.queue.depth + at.queue.held
    wrong = (at.invalid_count, at.failing_count, at.contested_count)
    keys = NONE if at.keys is None else at.keys
    return [*head, *map(str, (at.primaries, keys, *wrong, queued, at.queue.waiting))]


def _troubles(at: ControllerStatus) -> Iterator[str]:
    if at.members:
        yield f"{at.controller}: {_sharing(len(at.members))}"
    if at.trouble:
        yield f"{at.controller}: {at.trouble}"
    if at.failure:
        yield f"{at.controller}: {at.failure}"
    if at.garbage_held:
        yield (
            f"{at.controller}: garbage collection is held: {at.garbage_held}; "
            f"see natsctl gc accept -c {at.controller}"
        )
    for kind in at.missing_kinds:
        yield f"{at.controller}: the cluster does not have the optional kind {kind}"
    yield from _keys(at.controller, "is left alone", at.invalid, at.invalid_count)
    yield from _keys(at.controller, "fails", at.failing, at.failing_count)
    yield from _keys(at.controller, "is contested", at.contested, at.contested_count)


def _sharing(members: int) -> str:
    return "one member has all keys" if members == 1 else f"{members} members share the keys"


def _keys(controller: str, what: str, shown: dict[str, str], count: int) -> Iterator[str]:
    for key, why in shown.items():
        yield f"{controller}: {key} {what}: {_first_line(why)}"
    if count > len(shown):
        yield f"{controller}: and {count - len(shown)} more"


def _first_line(text: str) -> str:
    lines: Sequence[str] = text.splitlines()
    return lines[0] if lines else text
