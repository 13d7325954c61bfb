"""The `natsctl` program: its commands, and the exit status of each run."""

import importlib
import logging
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from natsctl.cli.terminal import OutputError, discard_output, flush, write_notice
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError

AUTHOR, OBJECTS, OPERATE = "Write controllers", "Objects", "Operate"
SETUP = "Set up"

COMMANDS = {
    "run": ("run", AUTHOR, "Run controllers until they are stopped."),
    "new": ("new", AUTHOR, "Create a controller, its test and a manifest; or a hook."),
    "plan": ("plan", AUTHOR, "Show what a controller would do, and change nothing."),
    "simulate": (
        "simulate",
        AUTHOR,
        "Simulate a controller under faults, and find the bugs of a bad day.",
    ),
    "replay": ("replay", AUTHOR, "Replay a recorded sync in memory."),
    "migrate": ("migrate", AUTHOR, "Rewrite objects in the newest form of their types."),
    "get": ("get", OBJECTS, "Show one object, the objects of a bucket, or the buckets."),
    "put": ("writing", OBJECTS, "Store a whole object."),
    "apply": ("writing", OBJECTS, "Apply objects from files."),
    "edit": ("edit", OBJECTS, "Edit an object in an editor."),
    "delete": ("writing", OBJECTS, "Delete objects."),
    "diff": ("writing", OBJECTS, "Show what natsctl apply would change."),
    "wait": ("get", OBJECTS, "Wait until objects meet a condition."),
    "label": ("writing", OBJECTS, "Set or remove labels of objects."),
    "annotate": ("writing", OBJECTS, "Set or remove annotations of objects."),
    "history": ("get", OBJECTS, "Show the revisions of a key."),
    "rollback": ("writing", OBJECTS, "Restore an earlier revision of an object."),
    "explain": ("schemas", OBJECTS, "Explain the fields of a kind."),
    "status": ("status", OPERATE, "Show the controllers, and the keys that need you."),
    "describe": ("status", OPERATE, "Describe the state of a key, and what was made for it."),
    "events": ("status", OPERATE, "Show what happened to keys."),
    "resync": ("acting", OPERATE, "Sync keys now."),
    "pause": ("acting", OPERATE, "Hold back the syncs of keys or of a controller."),
    "resume": ("acting", OPERATE, "Sync paused keys or a paused controller again."),
    "gc": ("gc", OPERATE, "Find and remove secondaries whose owner does not exist."),
    "console": ("console", OPERATE, "Serve a page that shows controllers and their objects."),
    "repair": ("repair", OPERATE, "Repair external links, the installation, garbage collection."),
    "doctor": ("setup", SETUP, "Check everything that controllers need."),
    "config": ("setup", SETUP, "Print the settings in effect and the source of each."),
    "rbac": ("setup", SETUP, "Print the permissions that controllers need."),
    "health": ("setup", SETUP, "Check the health of the daemon on this machine."),
    "hook-schema": ("setup", SETUP, "Print the JSON Schemas of hooks."),
    "options": ("setup", SETUP, "Show the options of every command, such as the connection."),
}
"""The module, the panel and the summary of each command, in the order of the help."""

GROUPS = ("gc", "repair")
"""Commands that have subcommands."""

FORMER = {
    "list": "get",
    "watch": "get --watch",
    "tree": "describe",
    "schema": "explain --output jsonschema",
    "explain-kind": "explain",
    "dev": "run --reload --embedded --store-dir .natsctl",
    "record": "replay --record",
    "recording": "replay --output -",
    "external": "repair external",
    "installation": "repair installation",
    "example": "new --example",
    "gc accept": "repair gc",
    "top": ": use natsctl status -w",
    "backup": ": use nats stream backup KV_BUCKET FOLDER",
    "restore": ": use nats stream restore FOLDER, for a folder of nats stream backup",
    "ls": ": use natsctl get",
    "logs": ": the log is the standard error of natsctl run",
    "create": ": use natsctl put --create",
    "scale": ": use natsctl edit",
}
"""The words that stand for a command of version 0.2, which a notice names; or, after a colon, what
to use for a command that is gone, or is of kubectl or nats."""

_TYPE = re.compile(r" <[^>]*>$")

SLOW_FREE = ("-h", "--help", "--version", "--install-completion", "--show-completion")


class _Commands(TyperGroup):
    """A group that loads the module of a command when the command is used."""

    _names_only = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base's signature
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the completions for a shell; loads no command."""
        self._names_only = True
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and the options in panels; loads no command.

        Drawn here, because what typer draws them with takes as long to load as all the rest.
        """
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, (_, panel, summary) in COMMANDS.items():
            panels.setdefault(panel, []).append((name, summary))
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        panels["Options"] = [(_TYPE.sub("", record[0]), record[1]) for record in records if record]
        width = formatter.width
        for title, rows in panels.items():
            names = COMMANDS if title != "Options" else [name for name, _ in rows]
            column = max(map(len, names))
            formatter.write(f"╭─ {title} {'─' * (width - len(title) - 5)}╮\n")
            for name, text in rows:
                for number, part in enumerate(textwrap.wrap(text, width - column - 6)):
                    shown = f"{'' if number else name:<{column}}  {part}"
                    formatter.write(f"│ {shown:<{width - 4}} │\n")
            formatter.write(f"╰{'─' * (width - 2)}╯\n")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module, _, summary = COMMANDS.get(cmd_name, ("", "", ""))
        if summary and self._names_only:
            return TyperCommand(cmd_name, help=summary)
        if module:
            loaded = importlib.import_module(f"natsctl.cli.{module}").app
            group = get_group(loaded)
            return get_command(loaded) if cmd_name in GROUPS else group.commands[cmd_name]
        if summary or cmd_name.startswith("-") or ctx.resilient_parsing:
            return super().get_command(ctx, cmd_name)
        hint = FORMER.get(cmd_name) or did_you_mean(cmd_name, COMMANDS)
        raise UsageError(f"there is no command {cmd_name!r}{hint}")


app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    suggest_commands=False,
)


def _show_version(requested: bool) -> None:  # noqa: FBT001 - typer calls it
    if requested:
        from importlib.metadata import version as installed_version  # noqa: PLC0415 - takes 20 ms

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

    An object is BUCKET/KEY, or BUCKET KEY. natsctl COMMAND --help shows a command's own options.
    Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 conflict.
    """


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    from natsctl.telemetry.logger import HidingFormatter  # noqa: PLC0415 - not for the help

    handler = logging.StreamHandler()
    handler.setFormatter(HidingFormatter("natsctl: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        status = _run(list(args))
        flush()
    except typer.Abort:
        return 1
    except BrokenPipeError:
        discard_output()
        return 141  # as shells report SIGPIPE
    except Exception as error:  # noqa: BLE001 - `report` distinguishes the errors
        from natsctl.cli.command import report  # noqa: PLC0415 - not for the help

        if isinstance(error, OutputError):
            discard_output()
        return report(error)
    if status == 130:  # noqa: PLR2004 - as shells report SIGINT
        write_notice("natsctl: interrupted")
    return status


def _run(args: list[str]) -> int:
    for number, argument in enumerate(args, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            message = f"argument {number} is not UTF-8; a value of other bytes can be in a file"
            raise UsageError(message) from None
    words = _renamed(_with_options_behind(args))
    if not words or (len(words) == 1 and words[0] in (*GROUPS, "options")):
        words = [*words, "--help"]
    try:
        return get_command(app).main(words, prog_name="natsctl", standalone_mode=False) or 0
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turned it into status 1
            raise end.__context__ from None
        raise


def _with_options_behind(args: list[str]) -> list[str]:
    """Return the arguments with the options of every command behind its name."""
    if not args or not args[0].startswith("-") or args[0] in SLOW_FREE:
        return args
    from natsctl.cli.command import global_flags  # noqa: PLC0415 - not for the help

    flags, leading, rest = global_flags(), list[str](), args
    while rest and rest[0].startswith("-"):
        flag, equals, _ = rest[0].partition("=")
        short = rest[0][:2] if rest[0][:2] in flags and rest[0][1:2] != "-" else flag
        if short not in flags:
            return args  # the group reports it
        takes_next = flags[short] and not equals and rest[0] == short
        leading += rest[: 1 + takes_next]
        rest = rest[1 + takes_next :]
    if not rest or "--help" in rest[:1] or "-h" in rest[:1]:
        return rest
    command = 1 + (rest[0] in GROUPS and len(rest) > 1)
    return [*rest[:command], *leading, *rest[command:]]


def _renamed(words: list[str]) -> list[str]:
    """Return the words of today for those of version 0.2, with a notice that names them."""
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    for size in (1, 2):
        former = " ".join(words[:size])
        new = FORMER.get(former, ":")
        if not new.startswith(":"):
            if not {"--help", "-h"} & set(words):
                write_notice(
                    f"natsctl {former} is now natsctl {new}, and goes with the next version"
                )
            return [*new.split(), *words[size:]]
    return words


def main() -> None:
    """Run the command line of this process and exit.

    The output is UTF-8 in every locale, because programs read it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the exit
        getattr(sys, name).reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
