"""`natsctl explain`: explains the state of a key."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import Name, NameArgument, parse_name
from natsctl.cli.operate.find_daemon import NamedOption, controller_name, controller_with, holds
from natsctl.cli.output.explanations import explanation_lines
from natsctl.cli.output.printing import Output, OutputOption, write_result
from natsctl.cli.output.terminal import write_line, write_text
from natsctl.daemon.api.absent import explained_without_daemon
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.messages import KeyExplanation
from natsctl.errors import NoDaemonError, NotFoundError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl explain greetings/shop",
    "natsctl explain greetings shop -o json | jq '.[].syncs[-1].error'",
)
@connected
async def explain(
    options: NatsOptions,
    *,
    object_: NameArgument,
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain the state of a key.

    The explanation has the key's place in the work queue and the time of its next sync, its last
    syncs with their results, the secondaries that it owns, the other objects that enqueue it, and
    its last events. If no daemon runs the controller, it has what NATS knows: the object, since
    when it fails, and its last syncs and events.
    """
    name = parse_name(object_)
    async with connect(options) as connection:
        try:
            explanations = await _explained(await Daemons.find(connection), name, controller)
        except (NoDaemonError, NotFoundError):
            explanations = await explained_without_daemon(
                connection, name.key, partial(holds, name=name), controller_name(controller)
            )
            if not explanations:
                raise
    write_result(
        explanations,
        output,
        names=[name.key],
        table=lambda: _write_all(explanations, datetime.now(UTC)),
    )


async def _explained(daemons: Daemons, name: Name, controller: str | None) -> list[KeyExplanation]:
    """Return what the daemons know; raises `NotFoundError` if that's nothing."""
    chosen = await controller_with(daemons, name, controller)
    answers = await daemons.explain(chosen, name.key)
    explanations = [answer for answer in answers if answer.present or answer.past]
    if not explanations:
        raise NotFoundError(f"{chosen} has no {name}, and no sync or event of it")
    return explanations


def _write_all(explanations: Sequence[KeyExplanation], now: datetime) -> None:
    for number, explanation in enumerate(explanations):
        if number:
            write_line("")
        for line in explanation_lines(explanation, now):
            write_text(line)
