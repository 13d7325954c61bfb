"""`natsctl config`: prints the settings in effect, with their sources."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from natsctl.cli.framework.command import App
from natsctl.cli.framework.options import with_options
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.daemon.settings.catalogue import BY_NAME
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.setting import FIELDS, Setting, text_of_value
from natsctl.jetstream.options import NatsOptions, redacted
from natsctl.telemetry.hiding import MASK, hidden

app = App()


class SettingInEffect(msgspec.Struct, frozen=True):
    """A setting with its value in effect; a secret is masked."""

    setting: str
    value: Any
    source: str
    default: str


@app.add(
    "natsctl config --config production.toml",
    "natsctl config --context hub",
    "natsctl config -o json | jq '.[] | select(.source != \"default\")'",
)
@with_options(
    *("effective", "nats", "kube", "controllers", "logs", "http", "traces"),
    value=lambda effective: effective.with_context(),
)
def config(*, effective: Effective, output: OutputOption = Output.TABLE) -> None:
    """Print the settings in effect and the source of each.

    The source is a flag, a variable, a line of a file, a NATS context, or the default. Flags
    override variables, variables override the file, and the file overrides the context that nats
    context select selected. Secrets are masked.
    """
    settings = list(_settings(effective))
    names = (setting.setting for setting in settings)
    write_result(settings, output, names=names, table=lambda: _print(settings))
    effective.settings.check()


def _print(settings: Sequence[SettingInEffect]) -> None:
    headings = ["SETTING", "VALUE", "SOURCE"]
    rows = [[setting.setting, _cell(setting), setting.source] for setting in settings]
    write_table(headings, rows)


def _cell(setting: SettingInEffect) -> str:
    unset = setting.value is None or setting.value == []
    return setting.default if unset else text_of_value(setting.value)


def _settings(effective: Effective) -> Iterator[SettingInEffect]:
    for field in FIELDS:
        setting = BY_NAME[field]
        value = _masked(setting, effective.value(field))
        yield SettingInEffect(field, value, effective.source(field), setting.default)


def _masked(setting: Setting, value: object) -> object:
    match value:
        case None:
            return None
        case _ if setting.secret:
            return MASK
        case tuple():
            return [redacted(url) for url in NatsOptions(servers=value).urls] if value else []
        case str():
            return hidden(value)
        case _:
            return value
