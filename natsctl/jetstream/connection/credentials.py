"""Turns credentials in options and files into the arguments of nats-py's `connect`."""

import re
import ssl
from pathlib import Path
from typing import Any

from nats.aio.client import RawCredentials

from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import Server

_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_JWT = re.compile(r"-BEGIN NATS USER JWT-+\s+([\w.-]+?)\s+-+END NATS USER JWT-")


def arguments(options: NatsOptions, server: Server) -> dict[str, Any]:
    """Return the credential arguments of `Client.connect` for *server*; reads the files.

    Raises `UsageError` that names a file that is missing or malformed, without its content.
    """
    credentials: dict[str, Any] = {"token": options.token or server.token}
    if options.creds:
        credentials["user_credentials"] = _creds(options.creds)
    elif options.nkey:
        credentials["nkeys_seed_str"] = _seed(options.nkey, "nkey")
    elif options.user:
        credentials |= {"user": options.user, "password": options.password}
    elif server.user:
        credentials |= {"user": server.user, "password": server.password}
    if options.tls_ca or options.tls_cert or options.tls_first or server.secure:
        credentials["tls"] = _tls(options)
        credentials["tls_handshake_first"] = options.tls_first
        credentials["tls_hostname"] = server.tls_name
    return credentials


def _creds(file: str) -> RawCredentials:
    """Return the file's text; checks it first, because nats-py never returns without a JWT."""
    text = _read(file, "creds")
    jwt = _JWT.search(text)
    if jwt is None:
        raise UsageError(f"NATS creds file {file} has no user JWT")
    seed = _seed(file, "creds")
    return RawCredentials(
        f"-----BEGIN NATS USER JWT-----\n{jwt[1]}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def _seed(file: str, option: str) -> str:
    seed = _SEED.search(_read(file, option))
    if seed is None:
        raise UsageError(f"NATS {option} file {file} has no nkey seed of a user (SU…)")
    return seed[0]


def _read(file: str, option: str) -> str:
    try:
        return Path(file).expanduser().read_text("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"NATS {option} file {file}: {error.strerror}") from error


def _tls(options: NatsOptions) -> ssl.SSLContext:
    for option in ("tls_ca", "tls_cert", "tls_key"):
        file = getattr(options, option)
        if file:
            _read(file, option)
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
    except ssl.SSLError as error:
        raise UsageError(f"NATS tls_ca file {options.tls_ca} has no PEM certificate") from error
    if options.tls_cert:
        try:
            context.load_cert_chain(options.tls_cert, options.tls_key)
        except ssl.SSLError as error:
            raise UsageError(
                f"NATS tls_cert {options.tls_cert} and tls_key {options.tls_key} "
                f"are not a certificate and its key: {error.reason or error}"
            ) from error
    return context
