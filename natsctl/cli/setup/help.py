"""`natsctl help`: the help of a command."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, examples

app = commands()


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the commands that a shell may complete."""
    root = ctx.find_root()
    return [name for name in root.command.list_commands(root) if name.startswith(incomplete)]  # type: ignore[attr-defined]  # the root is a group


@app.command(cls=Command, epilog=examples("natsctl help list", "natsctl help gc apply"))
def help_(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="a command; without one, all are listed",
            metavar="COMMAND",
            autocompletion=_names,
        ),
    ] = None,
) -> None:
    """Show the help of a command."""
    root = ctx.find_root().command
    root.main([*(command or ()), "--help"], prog_name="natsctl", standalone_mode=False)
