"""What proves to a cluster who we are, and how long that holds.

A kubeconfig's user may keep a token in a file, or have a plugin that prints one; certificates may
be written out in it. Here all of it becomes tokens, and paths of files.
"""

import base64
import binascii
import math
from pathlib import Path

import msgspec

from natsctl.errors import UsageError
from natsctl.kubernetes.access.exec_plugin import ask_plugin
from natsctl.kubernetes.access.kubeconfig import ClusterEntry, ClusterTarget, User, read_file
from natsctl.kubernetes.access.options import KubeOptions

EARLY_S = 60.0  # how long before it expires a credential is replaced, half its time at most
RENEW_MIN_S = 1.0  # however short a credential lasts


class Proof(msgspec.Struct, frozen=True):
    """A cluster and a user with neither plugins nor data left, good for so many seconds."""

    cluster: ClusterEntry
    user: User
    good_for_s: float


async def prove(way: ClusterTarget, folder: Path, options: KubeOptions) -> Proof:
    """Ask the plugin, read the token's file, and write certificates into *folder*.

    Raises `UsageError` where a file cannot be read or is not what it should be, and what
    `ask_plugin` raises.
    """
    user, good_for_s = _from_files(way.user, options)
    if user.exec is not None:
        user, good_for_s = await _from_plugin(user, way, options)
    certificate = _as_file(user.client_certificate_data, folder / "tls.crt")
    key = _as_file(user.client_key_data, folder / "tls.key")
    authority = _as_file(way.cluster.certificate_authority_data, folder / "ca.crt")
    return Proof(
        msgspec.structs.replace(
            way.cluster,
            certificate_authority=authority or way.cluster.certificate_authority,
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


def _from_files(user: User, options: KubeOptions) -> tuple[User, float]:
    if not user.token_file:
        return user, options.reread_s if user.client_certificate else math.inf
    token = read_file(user.token_file).decode("utf-8", "replace").strip()
    if not token:
        raise UsageError(f"token file {user.token_file} is empty")
    return msgspec.structs.replace(user, token=token, token_file=None), options.reread_s


async def _from_plugin(user: User, way: ClusterTarget, options: KubeOptions) -> tuple[User, float]:
    if user.exec is None:
        return user, math.inf
    found = await ask_plugin(user.exec, way.cluster, timeout_s=options.plugin_timeout_s)
    lasts_s = found.lasts_s
    good_for_s = math.inf if lasts_s is None else lasts_s - min(EARLY_S, lasts_s / 2)
    proven = msgspec.structs.replace(user, exec=None, token=found.token or user.token)
    if found.client_certificate_data and found.client_key_data:
        proven = msgspec.structs.replace(
            proven,
            client_certificate_data=_encoded(found.client_certificate_data),
            client_key_data=_encoded(found.client_key_data),
        )
    return proven, max(RENEW_MIN_S, good_for_s)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _as_file(data: str | None, file: Path) -> str | None:
    if not data:
        return None
    try:
        file.write_bytes(base64.b64decode(data))
    except (binascii.Error, ValueError):
        raise UsageError(f"the kubeconfig's data for {file.name} is not in base64") from None
    return str(file)
