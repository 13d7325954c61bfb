"""Names a request as RBAC does, and turns an error response into one of natsctl's errors.

The body of such a response is a `metav1.Status` in JSON, or plain text from a proxy.
"""

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

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
from natsctl.telemetry.hiding import enumerated, shortened
from natsctl.telemetry.tracing import Attributes, Span, call_span

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_COLLECTION_VERBS = {"get": "list", "delete": "deletecollection"}


class RequestInfo(msgspec.Struct, frozen=True):
    """The verb and the resource of a request, as in a Role. A part that the request lacks is empty.

    As text: `patch deployments/status.apps 'web' in namespace 'shop'`.
    """

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def __str__(self) -> str:
        if not self.resource:
            return f"{self.verb} {self.path}".rstrip()
        group = f".{self.group}" if self.group else ""
        name = f" {self.name!r}" if self.name else ""
        namespace = f" in namespace {self.namespace!r}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{namespace}"


def request_info(method: str, path: str, query: Mapping[str, str] | None = None) -> RequestInfo:
    """Return the verb and the resource of a request with this method, path and query."""
    verb = _VERBS.get(method, method.lower())
    match path.strip("/").split("/"):
        case ["api", _, *segments]:
            group = ""
        case ["apis", group, _, *segments]:
            pass
        case _:
            segments, group = [], ""
    namespace = ""
    match segments:
        case ["namespaces" as resource, _, "status" | "finalize"]:
            object_path = segments[1:]
        case ["namespaces", namespace, resource, *object_path]:
            pass
        case [resource, *object_path]:
            pass
        case _:
            return RequestInfo(verb, path=path)
    if not object_path:
        verb = _COLLECTION_VERBS.get(verb, verb)
    if query and query.get("watch", "").lower() in ("1", "true"):
        verb = "watch"
    name, subresource = [*object_path, "", ""][:2]
    if subresource:
        resource = f"{resource}/{subresource}"
    return RequestInfo(verb, group, resource, namespace, name, path)


def request_span(method: str, server: str, path: str, info: Callable[[], RequestInfo]) -> Span:
    """Return the span of one attempt to send a request; *info* is called only if it is recorded.

    Source: OpenTelemetry's semantic conventions for HTTP clients and for Kubernetes.
    """

    def attributes() -> tuple[str, Attributes]:
        request, url = info(), urlsplit(server)
        namespace = {"k8s.namespace.name": request.namespace} if request.namespace else {}
        return f"{method} {request.resource}".rstrip(), {
            "http.request.method": method,
            "url.full": f"{server}{path}",
            "server.address": url.hostname or "",
            "server.port": url.port or (443 if url.scheme == "https" else 80),
            "natsctl.kube.verb": request.verb,
            "natsctl.kube.group": request.group,
            "natsctl.kube.resource": request.resource,
            "natsctl.kube.name": request.name,
            **namespace,
        }

    return call_span(attributes)


TEXT_MAX = 500  # characters of the server's message in an error
CAUSES_MAX = 10  # invalid fields that an error names
CAUSE_MIN = 80  # characters of each cause, however many causes there are

RBAC = "`natsctl rbac` prints the permissions that are needed"

_PATH_NOT_SERVED = "could not find the requested resource"
_TOO_LARGE = ("request is too large", "trying to send message larger than max")
_NO_SCHEMA = "failed to create typed patch object"  # older servers answer with status 500
_CANNOT = re.compile(r"\bcannot (\S+) (?:resource|path)\b")
_WEBHOOK = "admission webhook"
_FORBIDDEN = "Forbidden: "  # quotes no value; a comparison of the objects may follow its first line
_REFUSED_VALUES = ("FieldValueInvalid", "FieldValueForbidden")  # reasons of a cause
_IMMUTABLE = re.compile(  # the whole end of a cause's message; a quoted value comes before
    r"""(?:\A|:\ )(?:
        (?:[Ff]ield|[Vv]alue|[\w.]+)\ is\ immutable(?:\ after\ creation[^\n]*|\ when\ [^\n]*)?
        | updates\ to\ [^\n]*\ are\ forbidden
        | pod\ updates\ may\ not\ change\ fields\ other\ than\ [^\n]*
        | may\ not\ (?:be\ )?changed?\ (?:once\ set|in\ an\ update)
        | cannot\ change\ roleRef
        | failed\ rule:\ (?:self([\w.]*)\ ?==\ ?oldSelf\1|oldSelf([\w.]*)\ ?==\ ?self\2)
    )\.?\Z""",
    re.VERBOSE,
)
_MANAGER = re.compile(r'conflict with "([^"]*)"')


class ExpiredError(WatchBrokenError):
    """The server no longer has the requested revision, so the client must list again."""


class KindMissingError(StoreMissingError):
    """The server doesn't serve the path of a kind: the kind was removed, or its path changed."""


class UnavailableError(StoreError):
    """The server, or the server of one API group behind it, isn't available (status 503)."""


class StatusCause(msgspec.Struct, frozen=True):
    """One cause in a `metav1.Status`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] | None = None


class ApiStatus(msgspec.Struct, frozen=True):
    """The content of an error response, a `metav1.Status`."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None

    @property
    def text(self) -> str:
        """The server's message, or the HTTP status if there is no message."""
        if self.message:
            return self.message
        try:
            return f"{self.code} {HTTPStatus(self.code).phrase}"
        except ValueError:
            return f"status {self.code}"

    @property
    def causes(self) -> tuple[StatusCause, ...]:
        return (self.details and self.details.causes) or ()


def read_status(code: int, body: bytes) -> ApiStatus:
    """Return the content of an error response; never raises.

    If *code* is 0, the code in the body is used, as for the ERROR event of a watch.
    """
    try:
        status = msgspec.json.decode(body, type=ApiStatus)
    except DECODE_ERRORS:
        status = ApiStatus(body.decode("utf-8", "replace"))
    return replace(status, code=code or status.code, message=_one_line(status.message))


def error_for(status: ApiStatus, request: RequestInfo) -> StoreError:
    """Return the error to raise for an error response.

    Its text has the request, the server's message, and how to fix the problem if that is known.
    """
    if _NO_SCHEMA in status.message:
        return _invalid(status, request)
    too_large = any(text in status.message for text in _TOO_LARGE)
    if not too_large and status.code in _ERRORS:
        return _ERRORS[status.code](status, request)
    plain = TooLargeError if too_large else _PLAIN.get(status.code, StoreError)
    unknown = "; whether it took effect is unknown" if plain is StoreTimeoutError else ""
    return plain(f"cannot {request}: {status.text}{unknown}")


def _invalid(status: ApiStatus, request: RequestInfo) -> StoreError:
    """Name the invalid fields, each with its reason, which may dump a value before the problem."""
    reason, causes = status.text, [cause for cause in status.causes if cause.field]
    if causes:
        limit = max(CAUSE_MIN, TEXT_MAX // min(len(causes), CAUSES_MAX))
        texts = [_one_line(f"{cause.field}: {cause.message}", limit) for cause in causes]
        reason = enumerated(texts, CAUSES_MAX)
    text = f"cannot {request}: {reason}"
    refused = status.code == HTTPStatus.UNPROCESSABLE_ENTITY and status.reason == "Invalid"
    if refused and status.causes and all(map(_is_immutable, status.causes)):
        fields = tuple(dict.fromkeys(cause.field for cause in status.causes))
        return ImmutableFieldError(text, fields)
    return InvalidObjectError(text)


def _is_immutable(cause: StatusCause) -> bool:
    """Return whether the server says that it never changes the field in an existing object.

    What counts? Its own words, and the message that it gives a CEL rule without one. Another value
    may meet any other rule about a change, such as "cannot grow by more than 10".
    """
    message = cause.message
    if message.startswith(_FORBIDDEN):
        message = message.partition("\n")[0]
    known = cause.reason in _REFUSED_VALUES and bool(cause.field)
    return known and _IMMUTABLE.search(message) is not None


def _denied(status: ApiStatus, request: RequestInfo) -> StoreError:
    if status.code == HTTPStatus.UNAUTHORIZED:
        return PermissionDeniedError(
            f"cannot {request}: the server does not accept the credentials ({status.text}); log in "
            f"again, or check the user of the kubeconfig's context. {RBAC}"
        )
    create = replace(request, verb="create")
    if request.verb == "patch" and status.message.endswith("is forbidden:"):
        # the complete message of an older server if the user may patch but not create
        return PermissionDeniedError(f"may not {create}; {RBAC}")
    denied = _CANNOT.search(status.message)
    if denied is None and (status.reason or _WEBHOOK in status.message):
        # a quota, a policy, a webhook, or a namespace that is being deleted: not RBAC
        return PermissionDeniedError(f"may not {request}: {status.text}")
    # an apply that creates an object needs both verbs; the message names the missing one
    creates = denied is not None and request.verb == "patch" and denied[1] == "create"
    missing = create if creates else request
    return PermissionDeniedError(f"may not {missing}: {status.text}; {RBAC}")


def _not_found(status: ApiStatus, request: RequestInfo) -> StoreError:
    details = status.details or _Details()
    if details.kind == "namespaces" and request.resource != "namespaces":
        return StoreMissingError(f"cannot {request}: there is no namespace {details.name!r}")
    if not details.name or _PATH_NOT_SERVED in status.message:
        return KindMissingError(
            f"cannot {request}: the server has no such kind; check that its "
            "CustomResourceDefinition is installed"
        )
    return NotFoundError(f"cannot {request}: it does not exist")


def _conflict(status: ApiStatus, request: RequestInfo) -> StoreError:
    fields_by_manager: dict[str, list[str]] = {}
    for cause in status.causes:
        if cause.reason == "FieldManagerConflict":
            manager = _MANAGER.search(cause.message)
            name = manager[1] if manager else "another"
            fields_by_manager.setdefault(name, []).append(cause.field)
    if not fields_by_manager:
        return ConflictError(f"cannot {request}: {status.text}")
    owners = "; ".join(
        f"{name} owns {enumerated(fields, CAUSES_MAX)}"
        for name, fields in fields_by_manager.items()
    )
    return FieldConflictError(
        f"cannot {request}: {owners}. Remove these fields from the manifest, or apply with force",
        managers=tuple(fields_by_manager),
        fields=tuple(
            dict.fromkeys(field for fields in fields_by_manager.values() for field in fields)
        ),
    )


def _one_line(text: str, limit: int = TEXT_MAX) -> str:
    return shortened(" ".join(text.split()), limit)


_ERRORS: dict[int, Callable[[ApiStatus, RequestInfo], StoreError]] = {
    HTTPStatus.BAD_REQUEST: _invalid,
    HTTPStatus.UNAUTHORIZED: _denied,
    HTTPStatus.FORBIDDEN: _denied,
    HTTPStatus.NOT_FOUND: _not_found,
    HTTPStatus.CONFLICT: _conflict,
    HTTPStatus.UNPROCESSABLE_ENTITY: _invalid,
}

_PLAIN: dict[int, type[StoreError]] = {
    HTTPStatus.REQUEST_TIMEOUT: StoreTimeoutError,
    HTTPStatus.GONE: ExpiredError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: TooLargeError,
    HTTPStatus.SERVICE_UNAVAILABLE: UnavailableError,
    HTTPStatus.GATEWAY_TIMEOUT: StoreTimeoutError,
}
