"""`natsctl config`, `health` and `options`.

A container runs `natsctl health` every few seconds, so this module loads no controller.
"""

from typing import Any

import msgspec
import typer

from natsctl.cli.command import FAILED, App, settings
from natsctl.cli.output import TABLE, OutputOption, write_rows
from natsctl.cli.terminal import write_text
from natsctl.daemon.probe import probe
from natsctl.daemon.settings.settings import BY_NAME, FIELDS, Address, text_of_value
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, redacted
from natsctl.telemetry.escaping import escaped
from natsctl.telemetry.hiding import MASK, hidden

app = App()


class SettingInEffect(msgspec.Struct, frozen=True):
    """A setting with its value in effect; a secret is masked."""

    setting: str
    value: Any
    source: str
    default: str


ALL = ("controllers", "logs", "http", "traces")


@app.add(
    "natsctl config --config production.toml",
    "natsctl config --context hub",
    "natsctl config -o json | jq '.[] | select(.source != \"default\")'",
    sections=ALL,
    quiet=True,
)
def config(*, output: OutputOption = TABLE) -> None:
    """Print the settings in effect and the source of each.

    The source is a flag, a variable, a file, a NATS context, or the default. Flags
    override variables, variables override the file, and the file overrides the context that nats
    context select selected. Secrets are masked.
    """
    effective = settings().with_context()
    shown: list[SettingInEffect] = []
    rows: list[tuple[str, ...]] = []
    for field in FIELDS:
        setting, value = BY_NAME[field], effective.value(field)
        match value:
            case str() | int() | tuple() if setting.secret:
                value = MASK
            case tuple():
                value = [redacted(url) for url in NatsOptions(servers=value).urls] if value else []
            case str():
                value = hidden(value)
            case _:
                pass
        source = effective.source(field)
        shown.append(SettingInEffect(field, value, source, setting.default))
        text = setting.default if value in (None, []) else text_of_value(value)
        rows.append((field, text, source))
    headings = ("SETTING", "VALUE", "SOURCE")
    write_rows(shown, output, names=FIELDS, headings=headings, rows=rows)
    effective.settings.check()


@app.add(
    "natsctl health --listen :8080",
    "natsctl health --ready",
    "NATSCTL_LISTEN=127.0.0.1:9090 natsctl health",
    sections=("http",),
    ready="Check readiness (/readyz) instead of liveness (/livez)",
)
async def health(*, ready: bool = False) -> None:
    """Check the health of the daemon on this machine.

    The address is the --listen address of natsctl run, from the flag, the environment or the
    settings file. The exit code is 1 if a check fails or no daemon answers. The output lists the
    checks.
    """
    listen = settings().settings.http.listen
    if listen is None:
        raise UsageError(
            "the address of the daemon is not set: give --listen HOST:PORT, or set NATSCTL_LISTEN, "
            "for natsctl run and natsctl health"
        )

    answer = await probe(Address.parse(listen), f"{'/readyz' if ready else '/livez'}?verbose")
    write_text(escaped(answer.text.rstrip(), keep="\n"))
    if not answer.passed:
        raise typer.Exit(FAILED)


@app.add("natsctl -s hub:4222 status", sections=ALL, expanded=True, hooks=True, controller="")
def options(*, controller: list[str]) -> None:
    """Show the options of every command, such as the connection.

    Those of the connection, of Kubernetes and --config stand before or after any command. The
    others are those of natsctl run; a hook is for simulate and plan too. Each is also a variable,
    and a line of the settings file: natsctl config shows the source of each.
    """
