"""The base types of objects: frozen structs with metadata, a spec and a status.

Objects are immutable. To change one, write a changed copy (`msgspec.structs.replace`) to its store.
"""

import msgspec

DOMAIN = "natsctl.io"

PAUSED = f"{DOMAIN}/paused"
"""The annotation that pauses an object, see `natsctl.model.pause`."""

LINK = (
    "external-name",
    "external-create-pending",
    "external-create-succeeded",
    "external-create-failed",
    "external-adopted",
)
"""Annotations that link an object to its external resource, in the domain of its reconciler."""

POLICIES = ("paused", "management-policy", "deletion-policy", "adopt")
"""Annotations that users set to control the reconciler, in the same domain."""

STORED_VERSION = f"{DOMAIN}/stored-version"
"""The annotation with the number of the version of the type that an object was stored as."""


class Metadata(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, dict=False
):
    """The metadata of an object. It has no name: the key is the name.

    `generation` counts changes of what somebody wants, not of the status. If there's a
    `deletion_timestamp` (RFC 3339), the object goes as soon as `finalizers` is empty.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    generation: int = 0
    uid: str = ""
    deletion_timestamp: str | None = None


class Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of your stored types: add `spec`, and narrow the type of `status` if you like.

    Example:
        class Greeting(Object, frozen=True):
            spec: GreetingSpec
    """

    metadata: Metadata = Metadata()
    status: dict[str, object] = {}


class _Head(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


head = msgspec.json.Decoder(_Head)
"""Decodes the metadata of a value without the rest of the value."""


def is_reserved(annotation: str) -> bool:
    """Return whether the annotation stays when a write of the whole object doesn't have it."""
    domain, _, name = annotation.rpartition("/")
    return domain == DOMAIN or (bool(domain) and name in LINK)


def is_bookkeeping(annotation: str) -> bool:
    """Return whether natsctl writes the annotation, and users don't."""
    return is_reserved(annotation) and annotation.rpartition("/")[2] not in POLICIES
