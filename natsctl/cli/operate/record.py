"""`natsctl record`: records every sync of keys."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import (
    KeysArgument,
    NamedOption,
    choose_by_key,
    find_controller,
)
from natsctl.cli.output.terminal import write_line
from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_keys

app = App()


@app.add(
    "natsctl record shop market",
    "natsctl record shop --stop",
    "natsctl record --stop -c greetings",
)
@connected
async def record(
    options: NatsOptions,
    *,
    keys: KeysArgument = None,
    controller: NamedOption = None,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Record only failed syncs again; without a key, of all keys"),
    ] = False,
) -> None:
    """Record every sync of keys.

    A daemon keeps the last failed sync of each failing key. For these keys it keeps the last five
    syncs, whether they fail or not, until it ends. natsctl recording KEY fetches a recording.
    """
    selected = check_keys(keys or ())
    if not selected and not stop:
        raise UsageError("give the keys to record")
    choose = choose_by_key(selected[0]) if selected else None
    async with find_controller(options, controller, choose=choose) as (daemons, name):
        answers = await daemons.record(name, selected, stop=stop)
    for answer in answers:
        recorded = ", ".join(answer.keys) or "only failed syncs"
        write_line(f"{answer.daemon} records {recorded} of {name}")
