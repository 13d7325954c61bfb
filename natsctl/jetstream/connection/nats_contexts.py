"""Reads the contexts of the `nats` command line."""

import difflib
import os
from pathlib import Path

import msgspec

from natsctl.errors import DECODE_ERRORS, UsageError
from natsctl.jetstream.connection.options import NatsOptions

_UNSUPPORTED = ("nsc", "user_jwt", "socks_proxy")  # fields that natsctl does not support


class _Context(msgspec.Struct, frozen=True):
    """A context file of `nats context save`; an empty field is not set."""

    url: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    creds: str = ""
    nkey: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    tls_first: bool = False
    jetstream_domain: str = ""
    jetstream_api_prefix: str = ""
    inbox_prefix: str = ""
    nsc: str = ""
    user_jwt: str = ""
    socks_proxy: str = ""


def with_context(options: NatsOptions) -> NatsOptions:
    """Return the options, with unset ones taken from the context that they name.

    Raises the errors of `load_context`.
    """
    if options.context is None:
        return options
    return options.over(load_context(options.context))


def load_context(name: str | None = None) -> NatsOptions:
    """Return the options of the named context, or of the selected context if *name* is None.

    Raises `UsageError` that names the file if the context does not exist, is malformed, or needs a
    feature that natsctl lacks. For an unknown name, the error lists similar names first.
    """
    if name is None:
        name = selected_context()
        if not name:
            raise UsageError(
                f"no NATS context is selected in {_selection()}: name one, or run "
                "`nats context select`"
            )
    file = _folder() / "context" / f"{name}.json"
    try:
        context = msgspec.json.decode(file.read_bytes(), type=_Context)
    except FileNotFoundError as error:
        raise UsageError(f"NATS context {name!r} is unknown: {_advice(name, file)}") from error
    except OSError as error:
        raise UsageError(f"NATS context {file} cannot be read: {error.strerror}") from error
    except DECODE_ERRORS:
        # without the cause, which may quote the file
        raise UsageError(f"NATS context {file} is not a valid context in JSON") from None
    return _options(context, file)


def _options(context: _Context, file: Path) -> NatsOptions:
    for field in _UNSUPPORTED:
        if getattr(context, field):
            raise UsageError(
                f"NATS context {file} uses {field}, which natsctl does not support: "
                "give it creds, nkey, user and password, or token"
            )
    return NatsOptions(
        servers=(context.url,) if context.url else (),
        user=context.user or None,
        password=context.password if context.user else None,
        token=context.token or None,
        creds=_path(context.creds),
        nkey=_path(context.nkey),
        tls_cert=_path(context.cert),
        tls_key=_path(context.key),
        tls_ca=_path(context.ca),
        tls_first=context.tls_first,
        domain=None if context.jetstream_api_prefix else context.jetstream_domain or None,
        api_prefix=context.jetstream_api_prefix or None,
        inbox_prefix=context.inbox_prefix or "_INBOX",
    )


def _path(text: str) -> str | None:
    return str(Path(os.path.expandvars(text)).expanduser()) if text else None


def _folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "nats"


def selected_context() -> str:
    """Return the name of the context that `nats context select` selected; empty without one."""
    try:
        return _selection().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _selection() -> Path:
    return _folder() / "context.txt"


def _advice(name: str, file: Path) -> str:
    names = [path.stem for path in file.parent.glob("*.json")]
    if not names:
        return f"there is no {file}, and no other context in that folder"
    names.sort(
        key=lambda candidate: (-difflib.SequenceMatcher(None, name, candidate).ratio(), candidate)
    )
    return f"there is no {file}; the contexts are {', '.join(names)}"
