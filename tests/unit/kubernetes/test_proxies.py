"""The proxy of a server follows from the kubeconfig and the environment, as in kubectl."""

import pytest

from natsctl.errors import UsageError
from natsctl.kubernetes.credentials import proxy_for

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_without_settings_there_is_no_proxy() -> None:
    assert proxy_for("https://kube.test:6443") is None


def test_the_proxy_of_the_kubeconfig_overrides_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://two.test:3128")
    monkeypatch.setenv("NO_PROXY", "kube.test")
    assert proxy_for("https://kube.test", "http://one.test:1") == "http://one.test:1"


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://kube.test:6443", "http://two.test:3128"),
        ("http://kube.test", "http://one.test"),
        ("https://in.cluster.test", None),
        ("https://10.1.2.3:6443", None),
        ("https://11.1.2.3:6443", "http://two.test:3128"),
        ("https://127.0.0.1:6443", None),
        ("https://[::1]:6443", None),
        ("https://localhost:6443", None),
    ],
)
def test_the_environment_selects_the_proxy_of_a_server(
    monkeypatch: pytest.MonkeyPatch, server: str, expected: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "two.test:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://one.test")
    monkeypatch.setenv("NO_PROXY", "other.test, .cluster.test,10.0.0.0/8")
    assert proxy_for(server) == expected


def test_an_unsupported_proxy_is_rejected_without_its_password() -> None:
    with pytest.raises(UsageError, match="a socks5 one") as raised:
        proxy_for("https://kube.test", "socks5://ann:s3cret@one.test")
    assert "s3cret" not in str(raised.value)
