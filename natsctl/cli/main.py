"""The `natsctl` program: its commands, and the exit status of each run."""

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from natsctl.cli.framework.command import EXIT_PIPE, INTERRUPTED, App
from natsctl.cli.framework.exit_codes import FAILED, USAGE, report, report_error
from natsctl.cli.framework.usage import explain_usage
from natsctl.cli.output.terminal import OutputError, discard_output, flush, write_notice
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.telemetry.logger import HidingFormatter

COMMANDS = {
    "run": ("daemon.run", "Run controllers until they are stopped."),
    "dev": (
        "daemon.dev",
        "Run controllers with a private nats-server, and restart them when their source changes.",
    ),
    "get": ("objects.get", "Show one object, the objects of a bucket, or the buckets."),
    "list": ("objects.list", "List the objects of a bucket."),
    "put": ("objects.put", "Store a whole object."),
    "apply": ("objects.apply", "Apply objects from files."),
    "edit": ("objects.edit", "Edit an object in an editor."),
    "delete": ("objects.delete", "Delete objects."),
    "watch": ("objects.watch", "Show objects and their changes."),
    "history": ("objects.history", "Show the revisions of a key."),
    "rollback": ("objects.rollback", "Restore an earlier revision of an object."),
    "schema": ("schemas.schema", "Print the JSON Schemas of kinds."),
    "explain-kind": ("schemas.explain_kind", "Explain the fields of a kind."),
    "status": (
        "operate.status",
        "Show the controllers, the daemons that run them, and the keys that need you.",
    ),
    "explain": ("operate.explain", "Explain the state of a key."),
    "tree": ("operate.tree", "Show a primary and the objects that were made for it."),
    "plan": ("operate.plan", "Show what a controller would do."),
    "resync": ("operate.resync", "Sync keys now."),
    "pause": ("operate.pause", "Hold back the syncs of keys or of a controller."),
    "resume": ("operate.resume", "Sync paused keys or a paused controller again."),
    "migrate": ("operate.migrate", "Rewrite objects in the newest form of their types."),
    "gc": ("operate.gc", "Find and remove secondaries whose owner does not exist."),
    "installation": ("operate.installation", "Show or change the id of this NATS system."),
    "external": (
        "operate.external",
        "Show the links to external resources, and resolve those with an unknown result.",
    ),
    "console": ("daemon.console", "Serve a page that shows controllers and their objects."),
    "record": ("operate.record", "Record every sync of keys."),
    "recording": ("operate.recording", "Fetch the recording of a sync."),
    "replay": ("daemon.replay", "Replay a recorded sync in memory."),
    "simulate": (
        "daemon.simulate",
        "Simulate a controller under faults, and find the bugs of a bad day.",
    ),
    "new": ("daemon.new", "Create a controller, its test and a manifest; or a hook."),
    "example": ("daemon.example", "List the example controllers, or print one."),
    "config": ("setup.config", "Print the settings in effect and the source of each."),
    "rbac": ("setup.rbac", "Print the Kubernetes permissions that controllers need."),
    "hook-schema": (
        "setup.hook_schema",
        "Print the JSON Schemas of what a hook is asked and what it answers.",
    ),
    "health": ("daemon.health", "Check the health of the daemon on this machine."),
    "doctor": ("setup.doctor", "Check everything that controllers need."),
    "help": ("", "Show the help of a command."),
}
"""The module and the summary of each command, in the order of the help.

A module is loaded when its command is used. `help` is a command of this module.
"""

GONE = {
    "top": "use natsctl status, or natsctl console for a live view",
    "backup": "use nats stream backup KV_BUCKET FOLDER",
    "restore": "use nats stream restore FOLDER, for a folder of nats stream backup",
}
"""What to use instead of each command that this version no longer has. Not in the help."""

ELSEWHERE = {
    "ls": "use natsctl get, or natsctl list BUCKET",
    "describe": "use natsctl explain BUCKET/KEY and natsctl tree BUCKET/KEY",
    "events": "natsctl explain BUCKET/KEY shows the events of a key",
    "logs": "the log is the standard error of natsctl run",
    "create": "use natsctl put --create",
    "scale": "use natsctl edit",
}
"""What to use here for the commands of kubectl and nats. Not in the help."""

GROUPS = ("gc", "installation", "external")
"""Commands that have subcommands."""


class _Commands(TyperGroup):
    """A group that loads the module of a command when the command is used."""

    _names_only = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base's signature
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the completions for a shell; loads no command."""
        self._names_only = True
        return super().shell_complete(ctx, incomplete)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module, summary = COMMANDS.get(cmd_name, ("", ""))
        if summary and self._names_only:
            return TyperCommand(cmd_name, help=summary)
        if module:
            return get_command(importlib.import_module(f"natsctl.cli.{module}").app)
        if summary or cmd_name.startswith("-") or ctx.resilient_parsing:
            return super().get_command(ctx, cmd_name)
        if cmd_name in GONE:
            raise UsageError(f"natsctl {cmd_name} is gone: {GONE[cmd_name]}")
        if cmd_name in ELSEWHERE:
            raise UsageError(f"there is no command {cmd_name!r}: {ELSEWHERE[cmd_name]}")
        raise UsageError(f"there is no command {cmd_name!r}{did_you_mean(cmd_name, COMMANDS)}")

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the base's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = App(completion=True)


def _show_version(requested: bool) -> None:  # noqa: FBT001 - typer calls it
    if requested:
        typer.echo(f"natsctl {installed_version('natsctl')}")
        raise typer.Exit


@app.callback(cls=_Commands)
def natsctl(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit"
        ),
    ] = False,
) -> None:
    """Run and operate controllers whose desired state is in NATS JetStream KV.

    Use `natsctl COMMAND --help` for the options of a command, such as the NATS connection.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict.
    """


def _command_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the commands that a shell completes."""
    root = ctx.find_root()
    return [name for name in root.command.list_commands(root) if name.startswith(incomplete)]  # type: ignore[attr-defined]  # the root is a group


@app.add("natsctl help list", "natsctl help gc apply", name="help")
def help_(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="The command; without it, all commands are listed",
            metavar="COMMAND",
            autocompletion=_command_names,
        ),
    ] = None,
) -> None:
    """Show the help of a command."""
    root = ctx.find_root().command
    root.main([*(command or ()), "--help"], prog_name="natsctl", standalone_mode=False)


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    handler = logging.StreamHandler()
    handler.setFormatter(HidingFormatter("natsctl: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        status = _run(args)
        flush()
    except OutputError as error:
        discard_output()
        return report(error)
    except BrokenPipeError:
        discard_output()
        return EXIT_PIPE
    if status == INTERRUPTED:
        write_notice("natsctl: interrupted")
    return status


def _run(args: Sequence[str]) -> int:
    """Run a command, report its error, and return its exit status."""
    try:
        _check_encoding(args)
        status = get_command(app).main(_with_help(args), prog_name="natsctl", standalone_mode=False)
    except typer.TyperException as error:
        report_error(explain_usage(error))
        return USAGE
    except typer.Abort:
        return FAILED
    except OutputError:
        raise
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turned it into status 1
            raise end.__context__ from None
        raise
    except Exception as error:  # noqa: BLE001 - `report` distinguishes the errors
        return report(error)
    return status or 0


def _check_encoding(args: Sequence[str]) -> None:
    """Raise `UsageError` for an argument with bytes that are not UTF-8."""
    for number, argument in enumerate(args, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            message = f"argument {number} is not UTF-8; a value of other bytes can be in a file"
            raise UsageError(message) from None


def _with_help(args: Sequence[str]) -> list[str]:
    """Return the arguments, with `--help` if they name no command or only a group."""
    incomplete = not args or (len(args) == 1 and args[0] in GROUPS)
    return [*args, "--help"] if incomplete else list(args)


def main() -> None:
    """Run the command line of this process and exit.

    The output is UTF-8 in every locale, because programs read it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the exit
        getattr(sys, name).reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
