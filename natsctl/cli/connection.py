"""How a command is told where NATS is: options, the environment, a context."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from natsctl.errors import UsageError
from natsctl.kv.options import NatsOptions

SECTION = "Connection"


class _Flag(NamedTuple):
    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    environment: tuple[str, ...]


def _flag(name: str, metavar: str, text: str, *more: str, env: tuple[str, ...] = ()) -> _Flag:
    flags = (f"--{name.replace('_', '-')}", *more)
    return _Flag(name, flags, metavar, text, (f"NATSCTL_{name.upper()}", *env))


_FLAGS = (
    _flag("server", "URL", "NATS servers, comma-separated", "-s", env=("NATS_URL",)),
    _flag("context", "NAME", "a context of the NATS command line"),
    _flag("creds", "FILE", "a credentials file"),
    _flag("nkey", "FILE", "a file with a user's nkey seed"),
    _flag("user", "NAME", "a user's name"),
    _flag("password", "TEXT", "the user's password"),
    _flag("token", "TEXT", "an authentication token"),
    _flag("tls_ca", "FILE", "the certificates that vouch for the servers"),
    _flag("tls_cert", "FILE", "our own certificate"),
    _flag("tls_key", "FILE", "our certificate's key"),
    _flag("domain", "NAME", "the JetStream domain"),
    _flag("timeout", "SECONDS", "how long to wait for the server"),
)
NAMES = frozenset(flag.name for flag in _FLAGS)
ENVIRONMENT = frozenset(name for flag in _FLAGS for name in flag.environment)


def parameters() -> Iterator[inspect.Parameter]:
    """Return the options that every command takes, as typer reads them off a signature."""
    for flag in _FLAGS:
        option: Any = typer.Option(
            *flag.flags,
            metavar=flag.metavar,
            help=f"{flag.help} [env: {', '.join(flag.environment)}]",
            rich_help_panel=SECTION,
        )
        yield inspect.Parameter(
            flag.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, option],
        )


def nats_options(given: Mapping[str, str | None], environ: Mapping[str, str]) -> NatsOptions:
    """Return how to connect: what was given, and what the environment says beneath it.

    Who names a context on the command line means that one: the environment is left aside then.
    """
    ours = _options({flag.name: (given.get(flag.name), flag.flags[0]) for flag in _FLAGS})
    if ours.context is not None:
        return ours
    theirs = _options({flag.name: _environment(flag, environ) for flag in _FLAGS})
    if ours.user and ours.password is None:
        ours = msgspec.structs.replace(ours, password=theirs.password)
    return ours.over(theirs)


def _environment(flag: _Flag, environ: Mapping[str, str]) -> tuple[str | None, str]:
    for name in flag.environment:
        if environ.get(name):
            return environ[name], name
    return None, ""


def _options(given: dict[str, tuple[str | None, str]]) -> NatsOptions:
    """Return the options that these texts mean; each comes with where it was given."""
    server, timeout = given.pop("server")[0], given.pop("timeout")
    known: dict[str, Any] = {name: text or None for name, (text, _) in given.items()}
    if server:
        known["servers"] = (server,)
    if timeout[0]:
        known["connect_timeout_s"] = known["request_timeout_s"] = _seconds(*timeout)
    return NatsOptions(**known)


def _seconds(text: str | None, where: str) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{where} {text!r} is no number of seconds above 0")
    return seconds
