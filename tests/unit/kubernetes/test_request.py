"""The description of a request has the RBAC verb, the resource, the name and the namespace."""

import pytest

from natsctl.kubernetes.api_errors import request_info


@pytest.mark.parametrize(
    ("method", "path", "description"),
    [
        ("GET", "/api/v1/pods", "list pods"),
        ("GET", "/api/v1/pods?watch", "watch pods"),
        ("GET", "/api/v1/namespaces/shop/pods", "list pods in namespace 'shop'"),
        ("GET", "/api/v1/namespaces/shop/pods/one", "get pods 'one' in namespace 'shop'"),
        ("DELETE", "/api/v1/namespaces/shop/pods", "deletecollection pods in namespace 'shop'"),
        ("POST", "/api/v1/namespaces/shop/pods", "create pods in namespace 'shop'"),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/shop/deployments/web/status",
            "patch deployments/status.apps 'web' in namespace 'shop'",
        ),
        ("GET", "/api/v1/namespaces", "list namespaces"),
        ("DELETE", "/api/v1/namespaces/shop", "delete namespaces 'shop'"),
        ("PUT", "/api/v1/namespaces/shop/finalize", "update namespaces/finalize 'shop'"),
        ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
        ("GET", "/version", "get /version"),
    ],
)
def test_a_request_is_described_by_verb_and_resource(
    method: str, path: str, description: str
) -> None:
    path, _, watch = path.partition("?")
    assert str(request_info(method, path, {"watch": "true"} if watch else {})) == description


def test_only_a_true_watch_parameter_makes_a_watch() -> None:
    assert request_info("GET", "/api/v1/pods", {"watch": "1"}).verb == "watch"
    assert request_info("GET", "/api/v1/pods", {"watch": "false"}).verb == "list"
