"""Error responses of the API server become typed errors with advice."""

import json

import pytest

from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    TooLargeError,
)
from natsctl.kubernetes.api_errors import (
    ExpiredError,
    KindMissingError,
    RequestInfo,
    UnavailableError,
    error_for,
    read_status,
    request_info,
)

GET = request_info("GET", "/api/v1/namespaces/shop/configmaps/one")
CREATE = request_info("POST", "/api/v1/namespaces/shop/configmaps")
APPLY = request_info("PATCH", "/api/v1/namespaces/shop/configmaps/one")


def error_of(code: int, body: bytes, request: RequestInfo = GET) -> StoreError:
    return error_for(read_status(code, body), request)


def status(message: str = "", reason: str = "", **details: object) -> bytes:
    return json.dumps({"message": message, "reason": reason, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, InvalidObjectError),
        (401, PermissionDeniedError),
        (403, PermissionDeniedError),
        (404, KindMissingError),
        (408, StoreTimeoutError),
        (409, ConflictError),
        (410, ExpiredError),
        (413, TooLargeError),
        (422, InvalidObjectError),
        (429, StoreError),
        (500, StoreError),
        (502, StoreError),
        (503, UnavailableError),
        (504, StoreTimeoutError),
        (302, StoreError),
        (599, StoreError),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>no\xff</html>", b"[]", b"null", b'{"details": null}']
)
def test_every_status_code_has_its_error_for_any_body(
    code: int, kind: type[StoreError], body: bytes
) -> None:
    error = error_of(code, body)
    assert type(error) is kind
    assert "configmaps 'one' in namespace 'shop'" in str(error)


def test_the_error_of_a_missing_permission_names_natsctl_rbac_unless_a_quota_is_exceeded() -> None:
    message = 'configmaps is forbidden: User "ann" cannot get resource "configmaps" in API group ""'
    error = error_of(403, status(message, "Forbidden"))
    assert 'User "ann" cannot' in str(error)
    assert "`natsctl rbac`" in str(error)
    assert "`natsctl rbac`" in str(error_of(403, b"forbidden by the proxy"))
    assert "`natsctl rbac`" in str(error_of(401, b""))
    error = error_of(403, status("exceeded quota: pods=10", "Forbidden"))
    assert isinstance(error, PermissionDeniedError)
    assert "exceeded quota" in str(error)
    assert "rbac" not in str(error)


def test_not_found_errors_distinguish_object_kind_and_namespace() -> None:
    missing_object = status('configmaps "one" not found', "NotFound", name="one", kind="configmaps")
    assert type(error_of(404, missing_object)) is NotFoundError
    missing_kind = status("the server could not find the requested resource", "NotFound")
    assert "no such kind" in str(error_of(404, missing_kind))
    missing_namespace = status('namespaces "shop" not found', name="shop", kind="namespaces")
    assert "no namespace 'shop'" in str(error_of(404, missing_namespace, CREATE))
    namespace = request_info("GET", "/api/v1/namespaces/shop")
    assert type(error_of(404, missing_namespace, namespace)) is NotFoundError


def test_a_field_conflict_names_the_other_managers_and_their_fields() -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}" using v1',
            "field": f,
        }
        for manager, f in (("ann", ".data.a"), ("ben", ".data.b"), ("ann", ".data.c"))
    ]
    error = error_of(409, status("Apply failed with 3 conflicts", "Conflict", causes=causes))
    assert isinstance(error, FieldConflictError)
    assert error.managers == ("ann", "ben")
    assert "Remove these fields from the manifest, or apply with force" in str(error)
    assert "ann owns .data.a, .data.c; ben owns .data.b" in str(error)


def test_an_invalid_object_error_names_the_first_invalid_fields() -> None:
    causes = [
        {"reason": "FieldValueRequired", "message": "Required value", "field": f"spec.f{number}"}
        for number in range(12)
    ]
    text = str(error_of(422, status("x is invalid", "Invalid", causes=causes)))
    assert "spec.f0: Required value, spec.f1: Required value" in text
    assert text.endswith("and 2 more")
    assert "spec.f10" not in text


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("etcdserver: request is too large", TooLargeError),
        ("rpc error: desc = trying to send message larger than max (2 vs 1)", TooLargeError),
        (
            "failed to create typed patch object: .dota: field not declared in schema",
            InvalidObjectError,
        ),
    ],
)
def test_the_message_of_status_500_tells_the_error(message: str, kind: type[StoreError]) -> None:
    error = error_of(500, status(message, "InternalError"), APPLY)
    assert type(error) is kind
    assert message in str(error)


def test_an_error_event_has_the_code_in_its_object() -> None:
    event = json.dumps({"kind": "Status", "code": 410, "message": "too old resource version"})
    assert isinstance(error_of(0, event.encode()), ExpiredError)


@pytest.mark.parametrize(
    "reason",
    [
        "Invalid value: v1.LabelSelector{}: field is immutable",
        "Forbidden: field is immutable when `immutable` is set",
        "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
        "Forbidden: spec is immutable after creation except resources.requests for bound claims",
        "Forbidden: pod updates may not change fields other than `spec.image`\n core.PodSpec{a: b}",
        'Invalid value: "10.0.0.9": may not change once set',
        'Invalid value: rbac.RoleRef{Name:"a"}: cannot change roleRef',
        "Forbidden: spec is immutable after creation except resources for bound claims\n  core.X{",
        "Forbidden: updates to parameters are forbidden.",
        "Forbidden: may not be changed in an update.",
        'Invalid value: "object": Value is immutable',
        'Invalid value: "fast": failed rule: self == oldSelf',
        'Invalid value: "string": failed rule: oldSelf == self',
        'Invalid value: "object": failed rule: self.class == oldSelf.class',
        "Invalid value: core.PodSpec{A:1,\nB:2}: field is immutable",
    ],
)
def test_an_immutable_field_error_names_the_field(reason: str) -> None:
    cause = {"reason": "FieldValueInvalid", "field": "spec.template", "message": reason}
    error = error_of(422, status("one is invalid", "Invalid", causes=[cause]), APPLY)
    assert isinstance(error, ImmutableFieldError)
    assert error.fields == ("spec.template",)
