"""`natsctl explain`: explains the state of a key."""

from collections.abc import Sequence
from datetime import UTC, datetime

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    PrimaryKeyArgument,
    choose_by_key,
    find_controller,
)
from natsctl.cli.output.explanations import explanation_lines
from natsctl.cli.output.printing import Output, OutputOption, write_result
from natsctl.cli.output.terminal import write_line, write_text
from natsctl.daemon.api.messages import KeyExplanation
from natsctl.errors import NotFoundError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key

app = App()


@app.add(
    "natsctl explain shop",
    "natsctl explain shop -c greetings -o json | jq '.[].syncs[-1].error'",
)
@connected
async def explain(
    options: NatsOptions,
    *,
    key: PrimaryKeyArgument,
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain the state of a key.

    The explanation has the key's place in the work queue and the time of its next sync, its last
    syncs with their results, the secondaries that it owns, the other objects that enqueue it, and
    its last events.
    """
    check_key(key)
    async with find_controller(options, controller, choose=choose_by_key(key)) as (daemons, name):
        answers = await daemons.explain(name, key)
    explanations = [answer for answer in answers if answer.present or answer.past]
    if not explanations:
        raise NotFoundError(f"{name} has no {key}, and no sync or event of it")
    write_result(
        explanations,
        output,
        names=[key],
        table=lambda: _write_all(explanations, datetime.now(UTC)),
    )


def _write_all(explanations: Sequence[KeyExplanation], now: datetime) -> None:
    for number, explanation in enumerate(explanations):
        if number:
            write_line("")
        for line in explanation_lines(explanation, now):
            write_text(line)
