"""Merges the settings of several sources, so that related settings come from one source."""

from collections.abc import Iterable
from typing import Any

import msgspec

from natsctl.daemon.settings.setting import FIELDS

LOGIN = ("nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token")
"""The fields that are credentials."""

_NOT_IN_CONTEXT = ("name", "connect_timeout_s", "request_timeout_s", "silence_s", "marker_ttl_s")
_CONTEXT = tuple(
    field
    for field in FIELDS
    if field.startswith("nats.") and field.removeprefix("nats.") not in _NOT_IN_CONTEXT
)
_CERTIFICATE = ("nats.tls_cert", "nats.tls_key")
_API = ("nats.domain", "nats.api_prefix")
_CLUSTER = tuple(
    f"kube.{name}" for name in ("server", "token", "tls_ca", "tls_insecure", "namespace", "enabled")
)

_OVERRIDES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LOGIN, LOGIN),
    # the user may be in one source, and the password in another
    **dict.fromkeys(("nats.user", "nats.password"), ("nats.creds", "nats.nkey", "nats.token")),
    **dict.fromkeys(_CERTIFICATE, _CERTIFICATE),
    **dict.fromkeys(_API, _API),
    "nats.context": _CONTEXT,
    "kube.kubeconfig": ("kube.context", *_CLUSTER),
    "kube.context": _CLUSTER,
}
"""The fields that a field overrides in all weaker sources."""


class Given(msgspec.Struct, frozen=True):
    """The value of a field of `Settings`, and its source."""

    value: Any
    source: str


Layer = dict[str, Given]
"""The values that one source sets, by the dotted name of the field."""


def merged(layers: Iterable[Layer]) -> Layer:
    """Return the settings in effect, from layers in descending precedence.

    A layer with any credential overrides all credentials of weaker layers. The same holds for a
    certificate and its key, and for a domain and a prefix. A layer that names a context overrides
    everything in weaker layers that a context can set, and so does a kubeconfig.
    """
    result: Layer = {}
    overridden: set[str] = set()
    for layer in layers:
        added = {
            name: given
            for name, given in layer.items()
            if name not in result and name not in overridden
        }
        result |= added
        overridden.update(field for name in added for field in _OVERRIDES.get(name, ()))
    return result
