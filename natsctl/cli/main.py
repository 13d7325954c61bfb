"""The `natsctl` program: its commands, and the exit status of each run."""

import importlib
import logging
import os
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_from_info

from natsctl.cli.terminal import OutputError, discard_output, flush, write_notice
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError

AUTHOR, OBJECTS, OPERATE = "Write controllers", "Objects", "Operate"
SETUP = "Set up"

COMMANDS = {
    "run": ("run", AUTHOR, "Run controllers until they are stopped."),
    "new": ("new", AUTHOR, "Create a controller, its test and a manifest; or a hook."),
    "plan": ("plan", AUTHOR, "Show what a controller would do, and change nothing."),
    "simulate": ("simulate", AUTHOR, "Simulate a controller under faults, and find its bugs."),
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
    "doctor": ("needs", SETUP, "Check everything that controllers need."),
    "config": ("setup", SETUP, "Print the settings in effect and the source of each."),
    "rbac": ("needs", SETUP, "Print the permissions that controllers need."),
    "health": ("setup", SETUP, "Check the health of the daemon on this machine."),
    "hook-schema": ("needs", SETUP, "Print the JSON Schemas of hooks."),
    "options": ("setup", SETUP, "Show the options of every command, such as the connection."),
}
"""The module, the panel and the summary of each command, in the order of the help."""

GROUPS = ("gc", "repair")
"""Commands that have subcommands."""

PREFIXES = (*GROUPS, "repair external", "repair installation")
"""The words that begin a command, and that another word has to follow."""

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

EXIT_PIPE = 141  # as shells report SIGPIPE: the reader of the output closed the pipe
SLOW_FREE = ("-h", "--help", "--version", "--install-completion", "--show-completion")


class _Commands(TyperGroup):
    """A group that loads the module of a command when the command is used."""

    _names_only = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base's signature
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the completions for a shell; loads no command."""
        self._names_only = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._names_only = False

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands and the options in panels; loads no command.

        Drawn here, because what typer draws them with takes as long to load as all the rest.
        """
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, (_, panel, summary) in COMMANDS.items():
            panels.setdefault(panel, []).append((name, summary))
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        panels["Options"] = [(one[0].partition(" <")[0], one[1]) for one in records if one]
        width = formatter.width
        for title, rows in panels.items():
            column = max(len(name) for name in (COMMANDS if title != "Options" else dict(rows)))
            formatter.write(f"╭─ {title} {'─' * (width - len(title) - 5)}╮\n")
            for name, text in rows:
                for number, part in enumerate(textwrap.wrap(text, width - column - 6)):
                    shown = f"{'' if number else name:<{column}}  {part}"
                    formatter.write(f"│ {shown:<{width - 4}} │\n")
            formatter.write(f"╰{'─' * (width - 2)}╯\n")

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            if cmd_name.startswith("-") or ctx.resilient_parsing:
                return None
            hint = FORMER.get(cmd_name) or did_you_mean(cmd_name, COMMANDS)
            raise UsageError(f"there is no command {cmd_name!r}{hint}")
        if self._names_only:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name][2])
        return _command(cmd_name)


@cache
def _command(name: str) -> Any:
    loaded = importlib.import_module(f"natsctl.cli.{COMMANDS[name][0]}").app
    if name in GROUPS:
        return get_command(loaded)
    info = next(one for one in loaded.registered_commands if one.name == name)
    return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)


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


@cache
def program() -> Any:
    """Return what parses the arguments; made once, as the commands are."""
    return get_command(app)


def run(args: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    from natsctl.telemetry.logger import HidingFormatter  # noqa: PLC0415 - not for the help

    handler = logging.StreamHandler()
    handler.setFormatter(HidingFormatter("natsctl: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    try:
        words = _words(list(args))
        status = program().main(words, prog_name="natsctl", standalone_mode=False) or 0
        flush()
    except typer.Abort:
        return 1
    except BrokenPipeError:
        discard_output()
        return EXIT_PIPE
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer turned it into status 1
            discard_output()
            return EXIT_PIPE
        raise
    except Exception as error:  # noqa: BLE001 - `report` distinguishes the errors
        from natsctl.cli.command import report  # noqa: PLC0415 - not for the help

        if isinstance(error, OutputError):
            discard_output()
        return report(error)
    if status == 130:  # noqa: PLR2004 - as shells report SIGINT
        write_notice("natsctl: interrupted")
    return int(status)


def _words(args: list[str]) -> list[str]:
    """Return the arguments as they are parsed: a command, and then its words and options.

    The options of every command go behind its name, the words of version 0.2 are those of today
    with a notice that names them, and what has nothing to do shows its help.
    """
    for number, argument in enumerate(args, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            message = f"argument {number} is not UTF-8; a value of other bytes can be in a file"
            raise UsageError(message) from None
    words = args
    first = args[0] if args else ""
    if first in GROUPS or (first.startswith("-") and first not in SLOW_FREE):
        words = _with_options_behind(args)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    for size in (1, 2):
        former = " ".join(words[:size])
        new = FORMER.get(former, ":")
        if not new.startswith(":"):
            if not {"--help", "-h"} & {*words}:
                moved = f"natsctl {former} is now natsctl {new}, and goes with the next version"
                write_notice(moved)
            words = [*new.split(), *words[size:]]
            break
    if not words or " ".join(words) in (*PREFIXES, "options"):
        return [*words, "--help"]
    return words


def _with_options_behind(args: list[str]) -> list[str]:
    from natsctl.cli.command import GLOBAL_FLAGS  # noqa: PLC0415 - not for the help

    leading, words, rest = list[str](), list[str](), args
    while rest and (not words or " ".join(words) in PREFIXES):
        flag, equals, _ = rest[0].partition("=")
        short = rest[0][:2] if rest[0][:2] in GLOBAL_FLAGS and rest[0][1:2] != "-" else flag
        if not rest[0].startswith("-"):
            words.append(rest[0])
            rest = rest[1:]
        elif rest[0] in {"--help", "-h"}:
            return [*words, *rest]
        elif short not in GLOBAL_FLAGS:
            return args  # the group reports it
        else:
            taken = 1 + (GLOBAL_FLAGS[short] and not equals and rest[0] == short)
            leading, rest = [*leading, *rest[:taken]], rest[taken:]
    if " ".join(words) in PREFIXES:
        return words
    return [*words, *(leading if words else ()), *rest]


def main() -> None:
    """Run the command line of this process and exit.

    The output is UTF-8 in every locale, because programs read it.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the exit
        getattr(sys, name).reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
