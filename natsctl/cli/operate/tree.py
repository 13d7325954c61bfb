"""`natsctl tree`: shows a primary and the objects that were made for it."""

from datetime import UTC, datetime

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    controller_with,
    find_daemons,
)
from natsctl.cli.output.explanations import TREE_HEADINGS, tree_rows
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_notice
from natsctl.core.tree import MISSING, Branch
from natsctl.errors import NotFoundError
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.names import parse_name

app = App()


@app.add(
    "natsctl tree greetings/shop",
    "natsctl tree webapps shop -o name",
)
@connected
async def tree(
    options: NatsOptions,
    *,
    object_: NameArgument,
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a primary and the objects that were made for it.

    The tree contains objects in NATS, in a Kubernetes cluster and in outside systems, as the caches
    of the daemon have them. READY is Pending until an object's controller has observed its newest
    generation, and Paused while the object is paused. AGE is the age of the revision in NATS, and
    of the object elsewhere.
    """
    name = parse_name(object_)
    async with find_daemons(options) as daemons:
        chosen = await controller_with(daemons, name, controller)
        root = await daemons.tree(chosen, name.key)
    if root.ready == MISSING and not root.branches:
        raise NotFoundError(f"{chosen} has no {name}, and nothing was made for it")
    names = [branch.name for branch in (root, *root.branches)]
    write_result(root, output, names=names, table=lambda: _write_table(root, datetime.now(UTC)))


def _write_table(root: Branch, now: datetime) -> None:
    write_table(TREE_HEADINGS, tree_rows(root, now))
    if root.more:
        write_notice(f"and {root.more} more objects")
