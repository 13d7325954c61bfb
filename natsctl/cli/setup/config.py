"""`natsctl config`: what is set, and where."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from natsctl.cli.framework.command import Command, commands, examples
from natsctl.cli.framework.options import handed
from natsctl.cli.output.entries import NONE
from natsctl.cli.output.printing import Output, OutputOption, write_found, write_table
from natsctl.daemon.settings.catalogue import BY_NAME, FIELDS
from natsctl.daemon.settings.load import Effective
from natsctl.jetstream.connection.options import NatsOptions, redacted
from natsctl.telemetry.hiding import MASK, Hider

app = commands()


class Held(msgspec.Struct, frozen=True):
    """A setting as it holds; a secret is not shown."""

    setting: str
    value: Any
    source: str


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl config --config production.toml",
        "natsctl config --context hub",
        "natsctl config -o json | jq '.[] | select(.source != \"default\")'",
    ),
)
@handed(
    *("effective", "nats", "kube", "controllers", "logs", "http", "traces"),
    of=lambda effective: effective.with_context(),
)
def config(*, effective: Effective, output: OutputOption = Output.TABLE) -> None:
    """Show what is set, and where: by a flag, a variable, a line of a file.

    Flags are the strongest, then the environment, then natsctl.toml. What a NATS context says is
    shown as well. Secrets are hidden.
    """
    held = list(_held(effective))
    names = (each.setting for each in held)
    write_found(held, output, names=names, table=lambda: _show(held))
    effective.settings.check()


def _show(held: Sequence[Held]) -> None:
    headings = ["SETTING", "VALUE", "SOURCE"]
    write_table(headings, [[each.setting, _cell(each.value), each.source] for each in held])


def _held(effective: Effective) -> Iterator[Held]:
    for field in FIELDS:
        yield Held(field, _shown(field, effective.value(field)), effective.source(field))


def _shown(field: str, value: object) -> object:
    """Return the value as it may be shown."""
    if value is not None and BY_NAME[field].secret:
        return MASK
    if isinstance(value, tuple):
        return [redacted(url) for url in NatsOptions(servers=value).urls] if value else []
    return Hider()(value) if isinstance(value, str) else value


def _cell(value: object) -> str:
    match value:
        case None | []:
            return NONE
        case list():
            return ",".join(value)
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)
