"""Explains a wrong option, argument or command, in words of our own."""

import re
from typing import Any

import typer

from natsctl.daemon.settings.did_you_mean import did_you_mean

_LIMITS = {
    "greater_than_equal": ("ge", "{:g} or more"),
    "less_than_equal": ("le", "{:g} or less"),
}
_KINDS = {"int_parsing": "a whole number", "float_parsing": "a number"}


def wrong_usage(error: typer.TyperException) -> str:
    """Return one line about the error, which names the help that says more."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" (see {context.command_path} --help)"
    return f"{_wrong(error)}{hint}"


def _wrong(error: typer.TyperException) -> str:
    details = _details(error)
    if isinstance(error, typer.BadParameter) and error.param is not None and details:
        expected = _expected(details)
        if expected:
            return f"{_name(error.param)} {details['input']!r} must be {expected}"
    unknown = getattr(error, "option_name", None)
    if unknown is not None and hasattr(error, "possibilities"):
        return f"there is no option {unknown}{did_you_mean(unknown, _options(error))}"
    command = re.fullmatch(r"(?s)No such command '(.*)'\.", error.format_message())
    if command is not None:
        return f"there is no command {command[1]}{did_you_mean(command[1], _subcommands(error))}"
    return error.format_message()


def _details(error: typer.TyperException) -> dict[str, Any]:
    """Return what the library found wrong with a value; nothing if it gives no details."""
    found = getattr(error.__cause__, "errors", None)
    details: list[dict[str, Any]] = found() if callable(found) else []
    return details[0] if details else {}


def _expected(details: dict[str, Any]) -> str:
    kind = details["type"]
    if kind in _LIMITS:
        name, text = _LIMITS[kind]
        return text.format(details["ctx"][name])
    _, found, choices = details["msg"].rpartition(" is not one of ")
    if found:
        return _one_of(re.findall(r"'([^']*)'", choices))
    return _KINDS.get(kind, "")


def _one_of(choices: list[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _name(param: Any) -> str:
    """Return the option's longest name, or what stands for an argument in help."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.make_metavar(None)) if param.metavar is None else str(param.metavar)


def _options(error: typer.TyperException) -> list[str]:
    context: Any = getattr(error, "ctx", None)
    known = [] if context is None else context.command.get_params(context)
    return [name for param in known for name in param.opts if name.startswith("--")]


def _subcommands(error: typer.TyperException) -> list[str]:
    context: Any = getattr(error, "ctx", None)
    return [] if context is None else list(context.command.list_commands(context))
