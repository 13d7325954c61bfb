"""Turns the credentials of a kubeconfig's user into a token and certificate files.

A user may have a token in a file, a credential plugin, or certificates inside the kubeconfig.
"""

import base64
import binascii
import math
from pathlib import Path

import msgspec

from natsctl.errors import UsageError
from natsctl.kubernetes.access.exec_plugin import Credential, run_plugin
from natsctl.kubernetes.access.kubeconfig import ClusterEntry, ClusterTarget, User, read_file
from natsctl.kubernetes.access.options import KubeOptions

EARLY_S = 60.0  # a credential is renewed this long before it expires, or half its lifetime
RENEW_MIN_S = 1.0  # the shortest time between two renewals


class ResolvedCredentials(msgspec.Struct, frozen=True):
    """A cluster and a user without plugins and inline data, valid for `good_for_s` seconds."""

    cluster: ClusterEntry
    user: User
    good_for_s: float


async def resolve_credentials(
    target: ClusterTarget, folder: Path, options: KubeOptions
) -> ResolvedCredentials:
    """Run the plugin, read the token file, and write inline certificates into *folder*.

    Raises `UsageError` if a file cannot be read or is invalid, and the errors of `run_plugin`.
    """
    user, good_for_s = _read_token_file(target.user, options)
    if user.exec is not None:
        credential = await run_plugin(user.exec, target.cluster, timeout_s=options.plugin_timeout_s)
        user, good_for_s = _with_credential(user, credential), _renewal_s(credential)
    certificate = _write_data(user.client_certificate_data, folder / "tls.crt")
    key = _write_data(user.client_key_data, folder / "tls.key")
    authority = _write_data(target.cluster.certificate_authority_data, folder / "ca.crt")
    return ResolvedCredentials(
        msgspec.structs.replace(
            target.cluster,
            certificate_authority=authority or target.cluster.certificate_authority,
            certificate_authority_data=None,
        ),
        msgspec.structs.replace(
            user,
            client_certificate=certificate or user.client_certificate,
            client_certificate_data=None,
            client_key=key or user.client_key,
            client_key_data=None,
        ),
        good_for_s,
    )


def _read_token_file(user: User, options: KubeOptions) -> tuple[User, float]:
    if not user.token_file:
        return user, options.reread_s if user.client_certificate else math.inf
    token = read_file(user.token_file).decode("utf-8", "replace").strip()
    if not token:
        raise UsageError(f"token file {user.token_file} is empty")
    return msgspec.structs.replace(user, token=token, token_file=None), options.reread_s


def _with_credential(user: User, credential: Credential) -> User:
    user = msgspec.structs.replace(user, exec=None, token=credential.token or user.token)
    if not (credential.client_certificate_data and credential.client_key_data):
        return user
    return msgspec.structs.replace(
        user,
        client_certificate_data=_base64(credential.client_certificate_data),
        client_key_data=_base64(credential.client_key_data),
    )


def _renewal_s(credential: Credential) -> float:
    lifetime_s = credential.lifetime_s
    if lifetime_s is None:
        return math.inf
    return max(RENEW_MIN_S, lifetime_s - min(EARLY_S, lifetime_s / 2))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _write_data(data: str | None, file: Path) -> str | None:
    if not data:
        return None
    try:
        file.write_bytes(base64.b64decode(data))
    except (binascii.Error, ValueError):
        raise UsageError(f"the kubeconfig's data for {file.name} is not in base64") from None
    return str(file)
