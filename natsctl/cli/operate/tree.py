"""`natsctl tree`: shows a primary and the objects that were made for it."""

from collections.abc import Iterator
from datetime import UTC, datetime

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    PrimaryKeyArgument,
    choose_by_key,
    find_controller,
)
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_notice
from natsctl.core.insight.tree import MISSING, Branch
from natsctl.errors import NotFoundError
from natsctl.jetstream.bucket.entries import NONE, age
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key

HEADINGS = ("OBJECT", "READY", "REASON", "REVISION", "AGE")

app = App()


@app.add(
    "natsctl tree shop",
    "natsctl tree shop -c webapps -o name",
)
@connected
async def tree(
    options: NatsOptions,
    *,
    key: PrimaryKeyArgument,
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a primary and the objects that were made for it.

    The tree contains objects in NATS, in a Kubernetes cluster and in outside systems, as the caches
    of the daemon have them. READY is Pending until an object's controller has observed its newest
    generation, and Paused while the object is paused. AGE is the age of the revision in NATS, and
    of the object elsewhere.
    """
    check_key(key)
    async with find_controller(options, controller, choose=choose_by_key(key)) as (daemons, name):
        root = await daemons.tree(name, key)
    if root.ready == MISSING and not root.branches:
        raise NotFoundError(f"{name} has no {key}, and nothing was made for it")
    names = map(_name, (root, *root.branches))
    write_result(root, output, names=names, table=lambda: _write_table(root, datetime.now(UTC)))


def _write_table(root: Branch, now: datetime) -> None:
    write_table(HEADINGS, [_row(prefix, branch, now) for prefix, branch in _lines(root)])
    if root.more:
        write_notice(f"and {root.more} more objects")


def _lines(branch: Branch, prefix: str = "", indent: str = "") -> Iterator[tuple[str, Branch]]:
    """Yield every branch with the lines that are drawn before its name."""
    yield prefix, branch
    for number, child in enumerate(branch.branches, 1):
        last = number == len(branch.branches)
        corner, line = ("└─", "  ") if last else ("├─", "│ ")
        yield from _lines(child, indent + corner, indent + line)


def _row(prefix: str, branch: Branch, now: datetime) -> list[str]:
    revision = NONE if branch.revision is None else str(branch.revision)
    created = age(branch.created, now)
    return [prefix + _name(branch), branch.ready, branch.reason or NONE, revision, created]


def _name(branch: Branch) -> str:
    return f"{branch.kind}/{branch.key}"
