"""The `natsctl` command: which commands there are, and how each ends."""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from natsctl.cli.framework.command import EXIT_PIPE, commands
from natsctl.cli.framework.exit_codes import FAILED, USAGE, say_error, tell
from natsctl.cli.framework.interrupts import INTERRUPTED
from natsctl.cli.framework.usage import wrong_usage
from natsctl.cli.output.terminal import OutputError, abandon_output, flush, say
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.telemetry.logger import HidingFormatter

COMMANDS = {
    "run": ("daemon.run", "Run controllers until told to stop."),
    "dev": ("daemon.dev", "Run controllers beside a private nats-server, anew at every change."),
    "get": ("objects.get", "Show one object."),
    "list": ("objects.list", "Show the objects of a bucket."),
    "put": ("objects.put", "Store an object, as a whole."),
    "apply": ("objects.apply", "Store what files say."),
    "edit": ("objects.edit", "Change an object in an editor."),
    "delete": ("objects.delete", "Delete objects; finalizers hold them until they are released."),
    "watch": ("objects.watch", "Show objects, and every change of them."),
    "history": ("objects.history", "Show what a bucket still knows of a key."),
    "rollback": ("objects.rollback", "Put an earlier revision of an object back."),
    "backup": ("objects.backup", "Write a whole bucket to a file."),
    "restore": ("objects.restore", "Write a backup into a bucket."),
    "status": ("operate.status", "Show what daemons run, and which keys fail."),
    "explain": ("operate.explain", "Show why a key is as it is."),
    "tree": ("operate.tree", "Show a primary with all that was made for it."),
    "resync": ("operate.resync", "Sync keys now."),
    "gc": ("operate.gc", "See and remove secondaries whose owner is gone."),
    "installation": (
        "operate.installation",
        "See the id of this NATS system; take over the objects of a lost one.",
    ),
    "external": (
        "operate.external",
        "See links to external resources, and settle those that need a person.",
    ),
    "new": ("daemon.new", "Write a controller, its test and a manifest, which run as they are."),
    "example": ("daemon.example", "List the example controllers, or print one."),
    "config": (
        "setup.config",
        "Show what is set, and where: by a flag, a variable, a line of a file.",
    ),
    "rbac": ("setup.rbac", "Show the least permissions that controllers need in a cluster."),
    "health": ("daemon.health", "Ask the daemon that listens on this machine how it is."),
    "doctor": ("setup.doctor", "Check everything that controllers need, and say what to do."),
    "help": ("setup.help", "Show the help of a command."),
}
"""By name, in the order of the help: the module, loaded when it is needed, and what it does."""

GROUPS = ("gc", "installation", "external")
"""Those that have commands of their own; without one they show which."""


class _Commands(TyperGroup):
    """A group that loads a command when it is asked for."""

    _outlined = False  # whether only the names of commands are needed

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base's signature
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what a shell may complete; no command is loaded for that."""
        self._outlined = True
        return super().shell_complete(ctx, incomplete)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and self._outlined:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"natsctl.cli.{COMMANDS[cmd_name][0]}")
            return get_command(module.app)
        if cmd_name.startswith("-") or ctx.resilient_parsing:
            return super().get_command(ctx, cmd_name)
        raise UsageError(f"there is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}")

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the base's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = commands(completion=True)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        typer.echo(f"natsctl {installed('natsctl')}")
        raise typer.Exit


@app.callback(cls=_Commands)
def natsctl(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
) -> None:
    """Keep everything equal to the desired state in NATS JetStream KV.

    Every command takes connection options, `natsctl COMMAND --help` shows them.

    Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 conflict.
    """


def run(args: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(HidingFormatter("natsctl: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        status = _status(args)
        flush()
    except OutputError as error:
        abandon_output()
        return tell(error)
    except BrokenPipeError:
        abandon_output()
        return EXIT_PIPE
    if status == INTERRUPTED:
        say("natsctl: interrupted")
    return status


def _status(args: Sequence[str]) -> int:
    """Run the command, report its error, and return its exit status."""
    try:
        ended = get_command(app).main(_completed(args), prog_name="natsctl", standalone_mode=False)
    except typer.TyperException as error:
        say_error(wrong_usage(error))
        return USAGE
    except typer.Abort:
        return FAILED
    except OutputError:
        raise
    except Exception as error:  # noqa: BLE001 - `tell` reports each in its way
        return tell(error)
    return ended or 0


def _completed(args: Sequence[str]) -> list[str]:
    """Return the words, and that help is meant where they end before a command."""
    ends_early = not args or (len(args) == 1 and args[0] in GROUPS)
    return [*args, "--help"] if ends_early else list(args)


def main() -> None:
    """Run the command line and exit."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as we run
    sys.exit(run(sys.argv[1:]))
