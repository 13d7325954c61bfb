"""Tells the annotations that natsctl keeps on objects from those of users."""

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


def is_reserved(annotation: str) -> bool:
    """Return whether a write of the whole object keeps the annotation, unless it gives another."""
    domain, _, word = annotation.rpartition("/")
    return domain == DOMAIN or (bool(domain) and word in LINK)


def is_bookkeeping(annotation: str) -> bool:
    """Return whether the annotation is natsctl's own record, and nothing that a user asks for."""
    return is_reserved(annotation) and annotation.rpartition("/")[2] not in WISHES
