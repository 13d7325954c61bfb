"""`natsctl tree`: a primary with all that was made for it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.operate.find_daemon import NamedOption, asked, with_key
from natsctl.cli.output.entries import NONE, age
from natsctl.cli.output.printing import Output, OutputOption, write_found, write_table
from natsctl.cli.output.terminal import say
from natsctl.core.insight.tree import MISSING, Branch
from natsctl.errors import NotFoundError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl tree shop",
        "natsctl tree shop -c webapps -o name",
    ),
)
@connected
async def tree(
    options: NatsOptions,
    *,
    key: Annotated[str, typer.Argument(help="a primary's key", metavar="KEY")],
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a primary with all that was made for it.

    What is kept in NATS, in a cluster and in outside systems, as the daemon's caches have it.
    READY is Pending while an object's controller has not seen its newest generation. AGE is that
    of the revision in NATS, of the object elsewhere.
    """
    check_key(key)
    async with asked(options, controller, choose=with_key(key)) as (daemons, name):
        top = await daemons.tree(name, key)
    if top.ready == MISSING and not top.branches:
        raise NotFoundError(f"{name} has no {key}, and nothing was made for it")
    names = map(_name, (top, *top.branches))
    write_found(top, output, names=names, table=lambda: _show(top, datetime.now(UTC)))


def _show(top: Branch, now: datetime) -> None:
    headings = ["OBJECT", "READY", "REASON", "REVISION", "AGE"]
    write_table(headings, [_row(stem, each, now) for stem, each in _drawn(top)])
    if top.more:
        say(f"and {top.more} more objects")


def _drawn(branch: Branch, stem: str = "", below: str = "") -> Iterator[tuple[str, Branch]]:
    """Return every branch with what is drawn before it; *below* is drawn before its own."""
    yield stem, branch
    for number, each in enumerate(branch.branches, 1):
        last = number == len(branch.branches)
        turn, on = ("└─", "  ") if last else ("├─", "│ ")
        yield from _drawn(each, below + turn, below + on)


def _row(stem: str, at: Branch, now: datetime) -> list[str]:
    revision = NONE if at.revision is None else str(at.revision)
    return [stem + _name(at), at.ready, at.reason or NONE, revision, age(at.created, now)]


def _name(at: Branch) -> str:
    return f"{at.kind}/{at.key}"
