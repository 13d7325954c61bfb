"""Explains a wrong option, argument or command in one line."""

import re
from collections.abc import Sequence
from typing import Any

import typer

from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError

_LIMITS = {
    "greater_than_equal": ("ge", "{:g} or more"),
    "less_than_equal": ("le", "{:g} or less"),
}
_NUMBERS = {"int_parsing": "a whole number", "float_parsing": "a number"}


def explain_usage(error: typer.TyperException) -> str:
    """Return one line about the error that also names the help of the command."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" (see {context.command_path} --help)"
    return f"{_explanation(error)}{hint}"


def _explanation(error: typer.TyperException) -> str:
    details = _details(error)
    if isinstance(error, typer.BadParameter) and error.param is not None and details:
        expected = _expected(details)
        if expected:
            return f"{_name(error.param)} {details['input']!r} must be {expected}"
    option = getattr(error, "option_name", None)
    if option == "--processes":  # until version 0.2
        return "there is no option --processes: start several daemons with --shard"
    if option is not None and hasattr(error, "possibilities"):
        return f"there is no option {option}{did_you_mean(option, _options(error))}"
    command = re.fullmatch(r"(?s)No such command '(.*)'\.", error.format_message())
    if command is not None:
        return f"there is no command {command[1]}{did_you_mean(command[1], _subcommands(error))}"
    return error.format_message()


def _details(error: typer.TyperException) -> dict[str, Any]:
    """Return the library's details about an invalid value; empty if there are none."""
    errors = getattr(error.__cause__, "errors", None)
    details: list[dict[str, Any]] = errors() if callable(errors) else []
    return details[0] if details else {}


def _expected(details: dict[str, Any]) -> str:
    """Return a phrase for the values that are valid; empty if the details are of another type."""
    error_type = details["type"]
    if error_type in _LIMITS:
        name, phrase = _LIMITS[error_type]
        return phrase.format(details["ctx"][name])
    _, separator, choices = details["msg"].rpartition(" is not one of ")
    if separator:
        return _one_of(re.findall(r"'([^']*)'", choices))
    return _NUMBERS.get(error_type, "")


def _one_of(choices: list[str]) -> str:
    *earlier_choices, last_choice = choices
    return f"{', '.join(earlier_choices)} or {last_choice}" if earlier_choices else last_choice


def _name(param: Any) -> str:
    """Return the longest name of an option, or the metavar of an argument."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.make_metavar(None)) if param.metavar is None else str(param.metavar)


def _options(error: typer.TyperException) -> list[str]:
    context: Any = getattr(error, "ctx", None)
    params = [] if context is None else context.command.get_params(context)
    return [name for param in params for name in param.opts if name.startswith("--")]


def _subcommands(error: typer.TyperException) -> list[str]:
    context: Any = getattr(error, "ctx", None)
    return [] if context is None else list(context.command.list_commands(context))


def only(names: Sequence[str], ambiguity: str, parameter: str) -> str:
    """Return the only name; raises `UsageError` if there are several to choose from."""
    if len(names) > 1:
        raise UsageError(f"{ambiguity}: give {parameter}, one of {', '.join(names)}")
    return names[0]
