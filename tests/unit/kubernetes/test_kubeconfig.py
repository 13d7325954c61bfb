"""Kubeconfigs are read as kubectl reads them, and errors never quote their content."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from natsctl import KubeOptions
from natsctl.errors import UsageError
from natsctl.kubernetes.kubeconfig import ClusterTarget, find_target


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


def config(name: str, *, current: str | None = None, **user: object) -> dict[str, object]:
    """Return a kubeconfig with a cluster, a user and a context of this name."""
    content: dict[str, object] = {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.test"}}],
        "users": [{"name": name, "user": user or {"token": f"token-of-{name}"}}],
    }
    return content if current is None else {**content, "current-context": current}


def write_file(file: Path, content: object) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(file)


def target_of(**options: Any) -> ClusterTarget:
    target = find_target(KubeOptions(**options))
    assert target is not None
    return target


def test_without_a_kubeconfig_there_is_no_target() -> None:
    assert find_target(KubeOptions()) is None


def test_an_empty_kubeconfig_has_no_target(home: Path) -> None:
    write_file(home / ".kube/config", "")
    assert find_target(KubeOptions()) is None
    write_file(home / ".kube/config", {"apiVersion": "v1", "kind": "Config"})
    assert find_target(KubeOptions()) is None


def test_an_option_overrides_the_environment_which_overrides_the_default_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home / ".kube/config", config("usual", current="usual"))
    assert target_of().context == "usual"
    monkeypatch.setenv("KUBECONFIG", write_file(home / "a", config("env", current="env")))
    assert target_of().context == "env"
    named = write_file(home / "b", config("named", current="named"))
    assert target_of(kubeconfig=named).context == "named"
    assert target_of(kubeconfig="~/b").cluster.server == "https://named.test"


def test_the_first_of_several_files_wins(home: Path) -> None:
    first_config = config("one", current="one")
    second_config = config("two", current="two")
    second_config["users"] += config("one", token="not this one")["users"]  # type: ignore[operator]
    files = [write_file(home / "1", first_config), write_file(home / "2", second_config)]
    joined_paths = os.pathsep.join(files)
    assert target_of(kubeconfig=joined_paths).user.token == "token-of-one"
    assert target_of(kubeconfig=joined_paths, context="two").user.token == "token-of-two"


def test_at_least_one_file_of_the_environment_must_exist(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = write_file(home / "a", config("one", current="one"))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(home / "none"), existing]))
    assert target_of().context == "one"
    monkeypatch.setenv("KUBECONFIG", str(home / "none"))
    with pytest.raises(UsageError, match="names no file that exists"):
        find_target(KubeOptions())


def test_paths_are_relative_to_the_file(home: Path) -> None:
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
    target = target_of(kubeconfig=write_file(home / "sub/config", content))
    assert target.cluster.certificate_authority == str(home / "sub/ca.crt")
    assert target.user.token_file == str(home / "sub/token")
    assert target.user.client_certificate == str(home / "sub/certs/me.crt")
    assert target.user.client_key == "/keys/me.key"
    assert target.user.exec.command == str(home / "sub/plugin")  # type: ignore[union-attr]


def test_a_plugin_without_a_slash_is_searched_on_the_path(home: Path) -> None:
    content = config("one", current="one", exec={"apiVersion": "v1", "command": "plugin"})
    assert target_of(kubeconfig=write_file(home / "a", content)).user.exec.command == "plugin"  # type: ignore[union-attr]


def test_options_override_the_file(home: Path) -> None:
    file = write_file(home / "a", config("one", current="one"))
    target = target_of(
        kubeconfig=file, server="https://other.test", token="other", tls_ca="/ca.crt"
    )
    assert target.cluster.server == "https://other.test"
    assert target.cluster.certificate_authority == "/ca.crt"
    assert target.user.token == "other"


def test_a_server_and_a_token_need_no_file(home: Path) -> None:
    write_file(home / ".kube/config", "{")
    assert target_of(server="https://one.test", token="t").user.token == "t"


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_the_error_of_an_invalid_kubeconfig_has_no_secrets(
    home: Path, content: object, message: str
) -> None:
    file = write_file(home / "a", content)
    with pytest.raises(UsageError, match=message) as raised:
        find_target(KubeOptions(kubeconfig=file))
    assert file in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_missing_named_file_is_an_error(home: Path) -> None:
    with pytest.raises(UsageError, match="none cannot be read: No such file"):
        find_target(KubeOptions(kubeconfig=str(home / "none")))


def test_the_repr_of_a_target_has_no_secrets(home: Path) -> None:
    target = target_of(
        kubeconfig=write_file(home / "a", config("one", current="one", password="s3cret"))
    )
    assert "s3cret" not in repr(target)
