"""`natsctl top`: shows controllers and failing keys live in the terminal."""

import logging
import sys

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.daemon.signals import until_signalled
from natsctl.errors import UsageError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl top",
    "natsctl top --context hub",
)
@connected
async def top(options: NatsOptions) -> None:
    """Show controllers and failing keys live in the terminal.

    The views are the controllers with their queues, the failing keys grouped by message, and one
    key with its explanation and its tree. They show the same answers as natsctl status, explain and
    tree, and use the NATS permissions of this command. The key ? shows the keyboard's keys.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("natsctl top needs a terminal: natsctl status shows the same once")
    try:
        from natsctl.cli.top.app import TopApp  # noqa: PLC0415 - imports Textual
    except ModuleNotFoundError as error:
        raise UsageError(
            f"natsctl top needs the extra console ({error.name} is missing): "
            "pip install 'natsctl[console]'"
        ) from error
    logging.getLogger("natsctl").setLevel(logging.CRITICAL)  # log lines would overwrite the view
    from natsctl.cli.top.answers import live_answers  # noqa: PLC0415 - imports aiohttp

    async with connect(options) as connection, live_answers(connection) as answers:
        program = TopApp(answers)
        await until_signalled(program.run_async())
    raise typer.Exit(program.return_code or 0)
