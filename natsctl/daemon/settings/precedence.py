"""Which of several sources holds, for each setting."""

from collections.abc import Iterable
from typing import Any

import msgspec

from natsctl.daemon.settings.catalogue import FIELDS

LOGIN = ("nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token")
"""What says who we are."""

_CLUSTER = ("server", "token", "tls_ca", "tls_insecure", "namespace", "enabled")
_KUBE = tuple(f"kube.{name}" for name in _CLUSTER)
_KEPT = (
    "name",
    "connect_timeout_s",
    "request_timeout_s",
    "silence_s",
    "marker_ttl_s",
)  # no context says them

_HIDES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LOGIN, LOGIN),
    # a user may be named in one place, and the password kept in another
    **dict.fromkeys(("nats.user", "nats.password"), ("nats.creds", "nats.nkey", "nats.token")),
    **dict.fromkeys(("nats.tls_cert", "nats.tls_key"), ("nats.tls_cert", "nats.tls_key")),
    **dict.fromkeys(("nats.domain", "nats.api_prefix"), ("nats.domain", "nats.api_prefix")),
    "nats.context": tuple(
        name for name in FIELDS if name.startswith("nats.") and name[5:] not in _KEPT
    ),
    "kube.kubeconfig": ("kube.context", *_KUBE),
    "kube.context": _KUBE,
}
"""What a setting makes void in the sources beneath its own: what belongs together, and else."""


class Given(msgspec.Struct, frozen=True):
    """What a source says of a field of `Settings`."""

    value: Any
    source: str


Layer = dict[str, Given]  # by the field's dotted name


def settled(layers: Iterable[Layer]) -> Layer:
    """Return what holds, of layers from the strongest to the weakest.

    What belongs together comes from one of them: who gives any credential uses none of those
    beneath, and so for a certificate and its key, a domain and a prefix. Who names a context
    leaves aside what lies beneath of what a context may say, and so for a kubeconfig.
    """
    found: Layer = {}
    void: set[str] = set()
    for layer in layers:
        taken = {n: given for n, given in layer.items() if n not in found and n not in void}
        found |= taken
        void.update(hidden for name in taken for hidden in _HIDES.get(name, ()))
    return found
