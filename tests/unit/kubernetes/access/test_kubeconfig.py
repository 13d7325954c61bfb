"""Kubeconfigs are read as kubectl reads them, and never quoted."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from natsctl.errors import UsageError
from natsctl.kubernetes.access.kubeconfig import ClusterTarget, find_target
from natsctl.kubernetes.access.options import KubeOptions


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


def config(name: str, *, current: str | None = None, **user: object) -> dict[str, object]:
    """A kubeconfig with a cluster, a user and a context that are all called alike."""
    content: dict[str, object] = {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.test"}}],
        "users": [{"name": name, "user": user or {"token": f"token-of-{name}"}}],
    }
    return content if current is None else {**content, "current-context": current}


def written(file: Path, content: object) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(file)


def found(**options: Any) -> ClusterTarget:
    way = find_target(KubeOptions(**options))
    assert way is not None
    return way


def test_without_any_there_is_no_way() -> None:
    assert find_target(KubeOptions()) is None


def test_an_empty_one_is_as_none(home: Path) -> None:
    written(home / ".kube/config", "")
    assert find_target(KubeOptions()) is None
    written(home / ".kube/config", {"apiVersion": "v1", "kind": "Config"})
    assert find_target(KubeOptions()) is None


def test_what_is_named_comes_before_the_environment_before_the_usual(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / ".kube/config", config("usual", current="usual"))
    assert found().context == "usual"
    monkeypatch.setenv("KUBECONFIG", written(home / "a", config("env", current="env")))
    assert found().context == "env"
    named = written(home / "b", config("named", current="named"))
    assert found(kubeconfig=named).context == "named"
    assert found(kubeconfig="~/b").cluster.server == "https://named.test"


def test_of_several_the_first_counts(home: Path) -> None:
    one = config("one", current="one")
    two = config("two", current="two")
    two["users"] += config("one", token="not this one")["users"]  # type: ignore[operator]
    files = [written(home / "1", one), written(home / "2", two)]
    both = os.pathsep.join(files)
    assert found(kubeconfig=both).user.token == "token-of-one"
    assert found(kubeconfig=both, context="two").user.token == "token-of-two"


def test_files_of_the_environment_may_be_missing_but_not_all(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = written(home / "a", config("one", current="one"))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(home / "none"), there]))
    assert found().context == "one"
    monkeypatch.setenv("KUBECONFIG", str(home / "none"))
    with pytest.raises(UsageError, match="names no file that exists"):
        find_target(KubeOptions())


def test_paths_are_from_where_the_file_is(home: Path) -> None:
    content = config(
        "one",
        current="one",
        **{
            "tokenFile": "token",
            "client-certificate": "certs/me.crt",
            "client-key": "/keys/me.key",
            "exec": {"apiVersion": "v1", "command": "./plugin"},
        },
    )
    content["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"  # type: ignore[index]
    way = found(kubeconfig=written(home / "sub/config", content))
    assert way.cluster.certificate_authority == str(home / "sub/ca.crt")
    assert way.user.token_file == str(home / "sub/token")
    assert way.user.client_certificate == str(home / "sub/certs/me.crt")
    assert way.user.client_key == "/keys/me.key"
    assert way.user.exec.command == str(home / "sub/plugin")  # type: ignore[union-attr]


def test_a_plugin_without_a_path_is_looked_for_on_the_path(home: Path) -> None:
    content = config("one", current="one", exec={"apiVersion": "v1", "command": "plugin"})
    assert found(kubeconfig=written(home / "a", content)).user.exec.command == "plugin"  # type: ignore[union-attr]


def test_options_go_over_the_file(home: Path) -> None:
    file = written(home / "a", config("one", current="one"))
    way = found(kubeconfig=file, server="https://other.test", token="other", tls_ca="/ca.crt")
    assert way.cluster.server == "https://other.test"
    assert way.cluster.certificate_authority == "/ca.crt"
    assert way.user.token == "other"


def test_a_server_and_a_token_need_no_file(home: Path) -> None:
    written(home / ".kube/config", "{")
    assert found(server="https://one.test", token="t").user.token == "t"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not valid YAML"),
        ("- s3cret", "is invalid"),
        ({"users": "s3cret"}, "is invalid.*users"),
        ({"users": [{"name": "a", "user": {"token": ["s3cret"]}}]}, r"users\[0\]\.user\.token"),
        (config("one", token="s3cret"), "no current context: choose one of one"),
        (config("one", current="two", token="s3cret"), "no context 'two'; known are one"),
        (
            {**config("one", current="one", token="s3cret"), "clusters": []},
            "names the unknown cluster 'one'",
        ),
        (
            {**config("one", current="one", token="s3cret"), "users": None},
            "names the unknown user 'one'",
        ),
        (
            {
                **config("one", current="one", token="s3cret"),
                "clusters": [{"name": "one", "cluster": {}}],
            },
            "the cluster of context 'one' has no server",
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_quotation(home: Path, content: object, told: str) -> None:
    file = written(home / "a", content)
    with pytest.raises(UsageError, match=told) as raised:
        find_target(KubeOptions(kubeconfig=file))
    assert file in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_named_must_be_there(home: Path) -> None:
    with pytest.raises(UsageError, match="none cannot be read: No such file"):
        find_target(KubeOptions(kubeconfig=str(home / "none")))


def test_what_was_read_shows_no_secret(home: Path) -> None:
    way = found(kubeconfig=written(home / "a", config("one", current="one", password="s3cret")))
    assert "s3cret" not in repr(way)
