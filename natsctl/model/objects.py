"""What an object looks like to Python: a frozen struct with metadata, a spec and a status.

Objects are values. A change is a new object (`msgspec.structs.replace`), handed to a store.
"""

import msgspec

DOMAIN = "natsctl.io"

LINK = (
    "external-name",
    "external-create-pending",
    "external-create-succeeded",
    "external-create-failed",
)
"""Annotations that link an object to its external resource, in the domain of its reconciler."""

WISHES = ("paused", "management-policy", "deletion-policy")
"""Annotations by which a user asks the reconciler for something, in the same domain."""


class Metadata(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, dict=False
):
    """What every object says about itself; the key is its name and is not repeated here.

    `generation` counts changes of what is desired, `deletion_timestamp` (RFC 3339) marks an
    object that goes as soon as `finalizers` is empty.
    """

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    generation: int = 0
    uid: str = ""
    deletion_timestamp: str | None = None


class Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of stored kinds; subclasses add `spec` and may narrow `status`.

    Example:
        class Greeting(Object, frozen=True):
            spec: GreetingSpec
    """

    metadata: Metadata = Metadata()
    status: dict[str, object] = {}


class Head(msgspec.Struct, frozen=True):
    """The part of a value that says who owns it and who holds it: only metadata is decoded."""

    metadata: Metadata = Metadata()


def is_reserved(annotation: str) -> bool:
    """Return whether a write of the whole object keeps the annotation, unless it gives another."""
    domain, _, word = annotation.rpartition("/")
    return domain == DOMAIN or (bool(domain) and word in LINK)


def is_bookkeeping(annotation: str) -> bool:
    """Return whether the annotation is natsctl's own record, and nothing that a user asks for."""
    return is_reserved(annotation) and annotation.rpartition("/")[2] not in WISHES
