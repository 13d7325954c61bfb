"""`natsctl explain`: explains the state of a key."""

from collections.abc import Sequence
from datetime import UTC, datetime

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.operate.find_daemon import NamedOption, controller_name
from natsctl.cli.output.explanations import explanation_lines
from natsctl.cli.output.printing import Output, OutputOption, write_result
from natsctl.cli.output.terminal import write_line, write_text
from natsctl.daemon.api.messages import KeyExplanation
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.fleet import open_fleet
from natsctl.operate.names import parse_name

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
    async with open_fleet(options) as fleet:
        explanations = await fleet.describe(name, controller_name(controller))
    write_result(
        explanations,
        output,
        names=[name.key],
        table=lambda: _write_all(explanations, datetime.now(UTC)),
    )


def _write_all(explanations: Sequence[KeyExplanation], now: datetime) -> None:
    for number, explanation in enumerate(explanations):
        if number:
            write_line("")
        for line in explanation_lines(explanation, now):
            write_text(line)
