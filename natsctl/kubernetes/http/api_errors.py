"""What a kube-apiserver's refusal means, as one of our errors.

A refusal is a `metav1.Status` in JSON, or whatever a proxy on the way says in plain text.
"""

import re
from collections.abc import Callable
from http import HTTPStatus

import msgspec
from msgspec.structs import replace

from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    WatchBrokenError,
)
from natsctl.kubernetes.http.request import Asked
from natsctl.telemetry.shortening import shortened

TEXT_MAX = 500  # characters of a server's answer that an error shows
CAUSES_MAX = 10  # fields at fault that an error names
CAUSE_MIN = 80  # characters of each of these, however many there are

RBAC = "`natsctl rbac` prints the permissions that are needed"

_NO_PATH = "could not find the requested resource"
_TOO_LARGE = ("request is too large", "trying to send message larger than max")
_NO_SCHEMA = "failed to create typed patch object"  # older servers report it as 500
_CANNOT = re.compile(r"\bcannot (\S+) (?:resource|path)\b")
_WEBHOOK = "admission webhook"
_NOT_ALLOWED = "Forbidden: "  # begins a reason that quotes no value
_IMMUTABLE = re.compile(
    r"\bimmutable\b|\bupdates to .* are forbidden|\b(?:may not|cannot) (?:be )?(?:change|update)",
    re.IGNORECASE,
)
_MANAGER = re.compile(r'conflict with "([^"]*)"')


class ExpiredError(WatchBrokenError):
    """The server no longer has the revision that was asked for: list anew."""


class KindMissingError(StoreMissingError):
    """The server does not serve the path of a kind: the kind is gone, or has another path."""


class StatusCause(msgspec.Struct, frozen=True):
    """One reason of a refusal."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    causes: list[StatusCause] | None = None


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class Refusal(msgspec.Struct, frozen=True):
    """What the server said instead of doing what was asked.

    `name` and `resource` are of the object that it speaks of, where it says so.
    """

    code: int
    message: str = ""
    reason: str = ""
    name: str = ""
    resource: str = ""
    causes: tuple[StatusCause, ...] = ()


def read_refusal(code: int, body: bytes) -> Refusal:
    """Return what an answer with this HTTP status says; never raises.

    `code` 0 means that the body says it: the object of a watch's ERROR event.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except DECODE_ERRORS:
        return Refusal(code, _shortened(body.decode("utf-8", "replace")))
    details = status.details or _Details()
    return Refusal(
        code or status.code,
        _shortened(status.message),
        status.reason,
        details.name,
        details.kind,
        tuple(details.causes or ()),
    )


def error_of(refusal: Refusal, what: Asked) -> StoreError:
    """Return the error to raise for a refusal of *what* was asked.

    Its text names what was asked for, says what the server said, and what can be done.
    """
    if any(sign in refusal.message for sign in _TOO_LARGE):
        return _too_large(refusal, what)
    if _NO_SCHEMA in refusal.message:
        return _invalid(refusal, what)
    return _MEANINGS.get(refusal.code, _failed)(refusal, what)


def _failed(refusal: Refusal, what: Asked) -> StoreError:
    return StoreError(f"cannot {what}: {_said(refusal)}")


def _too_large(refusal: Refusal, what: Asked) -> StoreError:
    return TooLargeError(f"cannot {what}: {_said(refusal)}")


def _invalid(refusal: Refusal, what: Asked) -> StoreError:
    text = f"cannot {what}: {_at_fault(refusal)}"
    causes = [cause for cause in refusal.causes if cause.field]
    reasons = [cause.message for cause in causes] or [refusal.message]
    if all(_IMMUTABLE.search(_reason(message)) for message in reasons):
        return ImmutableFieldError(text, tuple(dict.fromkeys(cause.field for cause in causes)))
    return InvalidObjectError(text)


def _reason(message: str) -> str:
    """Return the server's own words in *message*, without the value that they are about."""
    if message.startswith(_NOT_ALLOWED):
        return message.partition("\n")[0]
    return message.rpartition(": ")[2]


def _expired(refusal: Refusal, what: Asked) -> StoreError:
    return ExpiredError(f"cannot {what}: {_said(refusal)}")


def _late(refusal: Refusal, what: Asked) -> StoreError:
    return StoreTimeoutError(f"{what}: {_said(refusal)}; whether it took effect is unknown")


def _unauthorized(refusal: Refusal, what: Asked) -> StoreError:
    return PermissionDeniedError(
        f"cannot {what}: the server does not accept our credentials ({_said(refusal)}); "
        "log in anew, or see which user the kubeconfig's context names. "
        "`natsctl rbac` prints the permissions that are needed"
    )


def _forbidden(refusal: Refusal, what: Asked) -> StoreError:
    denied = _CANNOT.search(refusal.message)
    if what.verb == "patch" and refusal.message.endswith("is forbidden:"):
        # an older server's whole answer to an apply by a user who may patch but not create
        return PermissionDeniedError(f"may not {replace(what, verb='create')}; {RBAC}")
    if denied is None and (refusal.reason or _WEBHOOK in refusal.message):
        # a quota, a policy, a webhook, a namespace that is being deleted
        return PermissionDeniedError(f"may not {what}: {_said(refusal)}")
    # an apply that would create needs both verbs: the server names the one that is missing
    create = denied is not None and what.verb == "patch" and denied[1] == "create"
    missing = replace(what, verb="create") if create else what
    return PermissionDeniedError(f"may not {missing}: {_said(refusal)}; {RBAC}")


def _not_found(refusal: Refusal, what: Asked) -> StoreError:
    if refusal.resource == "namespaces" and what.resource != "namespaces":
        return StoreMissingError(f"cannot {what}: there is no namespace {refusal.name!r}")
    if not refusal.name or _NO_PATH in refusal.message:
        return KindMissingError(
            f"cannot {what}: the server has no such kind; is its CustomResourceDefinition there?"
        )
    return NotFoundError(f"cannot {what}: it does not exist")


def _conflict(refusal: Refusal, what: Asked) -> StoreError:
    rivals: dict[str, list[str]] = {}
    for cause in refusal.causes:
        if cause.reason == "FieldManagerConflict":
            manager = _MANAGER.search(cause.message)
            rivals.setdefault(manager[1] if manager else "another", []).append(cause.field)
    if not rivals:
        return ConflictError(f"cannot {what}: {_said(refusal)}")
    told = "; ".join(f"{name} owns {_listed(fields)}" for name, fields in rivals.items())
    return FieldConflictError(
        f"cannot {what}: {told}. Leave these fields out of the manifest, or apply by force",
        managers=tuple(rivals),
        fields=tuple(dict.fromkeys(field for fields in rivals.values() for field in fields)),
    )


def _at_fault(refusal: Refusal) -> str:
    """Return the fields at fault, each with its reason.

    A reason may be a dump of the whole value with the words that matter at its end.
    """
    causes = [cause for cause in refusal.causes if cause.field]
    if not causes:
        return _said(refusal)
    limit = max(CAUSE_MIN, TEXT_MAX // min(len(causes), CAUSES_MAX))
    faults = [_shortened(f"{cause.field}: {cause.message}", limit) for cause in causes]
    return _listed(faults)


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - CAUSES_MAX} more" if len(texts) > CAUSES_MAX else ""
    return ", ".join(texts[:CAUSES_MAX]) + more


def _said(refusal: Refusal) -> str:
    if refusal.message:
        return refusal.message
    try:
        return f"{refusal.code} {HTTPStatus(refusal.code).phrase}"
    except ValueError:
        return f"status {refusal.code}"


def _shortened(text: str, limit: int = TEXT_MAX) -> str:
    return shortened(" ".join(text.split()), limit)


_MEANINGS: dict[int, Callable[[Refusal, Asked], StoreError]] = {
    HTTPStatus.BAD_REQUEST: _invalid,
    HTTPStatus.UNAUTHORIZED: _unauthorized,
    HTTPStatus.FORBIDDEN: _forbidden,
    HTTPStatus.NOT_FOUND: _not_found,
    HTTPStatus.REQUEST_TIMEOUT: _late,
    HTTPStatus.CONFLICT: _conflict,
    HTTPStatus.GONE: _expired,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: _too_large,
    HTTPStatus.UNPROCESSABLE_ENTITY: _invalid,
    HTTPStatus.GATEWAY_TIMEOUT: _late,
}
