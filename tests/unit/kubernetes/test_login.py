"""Who natsctl is for a cluster: kubeconfigs and logins."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from natsctl import KubeOptions
from natsctl.errors import ConnectError, UsageError
from natsctl.kubernetes.credentials import Access, Login
from natsctl.kubernetes.kubeconfig import ClusterTarget, find_target
from natsctl.telemetry.hiding import hidden

# ---- kubeconfigs are read as kubectl reads them, and errors never quote their content


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


def test_without_a_kubeconfig_or_with_an_empty_one_there_is_no_target(home: Path) -> None:
    assert find_target(KubeOptions()) is None
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


def test_options_override_the_file_and_no_secret_is_in_the_repr(home: Path) -> None:
    content = config("one", current="one", password="s3cret")
    target = target_of(
        kubeconfig=write_file(home / "a", content),
        server="https://other.test",
        token="s3cret",
        tls_ca="/ca.crt",
    )
    assert target.cluster.server == "https://other.test"
    assert target.cluster.certificate_authority == "/ca.crt"
    assert target.user.token == "s3cret"
    assert "s3cret" not in repr(target)


ONE = config("one", current="one", token="s3cret")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid YAML"),
        ("- s3cret", "is invalid"),
        ({"users": "s3cret"}, "is invalid.*users"),
        (config("one", current="one", token=["s3cret"]), r"user 'one' is invalid.*\.token"),
        (config("one", token="s3cret"), "no current context: choose one of one"),
        (config("one", current="two", token="s3cret"), "no context 'two'; known are one"),
        ({**ONE, "clusters": []}, "names the unknown cluster 'one'"),
        ({**ONE, "users": None}, "names the unknown user 'one'"),
        (
            {**ONE, "clusters": [{"name": "one", "cluster": {}}]},
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


# ---- expired or rejected credentials are renewed once for all waiting requests

FIRST = Access(
    server="https://kube.test",
    namespace="default",
    context=None,
    in_pod=False,
    headers=(("Authorization", "Bearer s3cret"),),
    secret="s3cret",
    tls=True,
    tls_digest=b"",
    server_name=None,
    proxy=None,
    good_for_s=60.0,
)


class Source:
    """Loads new credentials in one second."""

    def __init__(self) -> None:
        self.loads = 0
        self.failing = False

    async def load(self, before: Access | None) -> Access:
        self.loads += 1
        await asyncio.sleep(1)
        if self.failing:
            raise ConnectError("the plugin fails")
        return msgspec.structs.replace(before, secret=f"s3cret{self.loads}")  # type: ignore[return-value,type-var]


async def test_expired_or_rejected_credentials_are_renewed_once() -> None:
    source = Source()
    login = Login(FIRST, source.load, retry_s=10)
    await asyncio.sleep(59)
    assert await login.current() is FIRST
    await asyncio.sleep(1)
    accesses = await asyncio.gather(*(login.current() for _ in range(10)))
    assert {access.secret for access in accesses} == {"s3cret1"}
    rejected = await asyncio.gather(*(login.renew(accesses[0]) for _ in range(10)))
    assert {access.secret for access in rejected} == {"s3cret2"}
    assert await login.renew(accesses[0]) is rejected[0]  # a late rejection gets the same access
    assert source.loads == 2


async def test_a_cancelled_renewal_is_repeated_by_the_next_request() -> None:
    source = Source()
    login = Login(FIRST, source.load, retry_s=10)
    first = asyncio.create_task(login.renew(FIRST))
    second = asyncio.create_task(login.renew(FIRST))
    await asyncio.sleep(0.5)
    first.cancel()
    assert (await second).secret == "s3cret2"


async def test_a_failed_renewal_keeps_the_old_credentials_until_the_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    source.failing = True
    login = Login(FIRST, source.load, retry_s=10)
    await asyncio.sleep(60)
    with caplog.at_level(logging.WARNING):
        assert await asyncio.gather(*(login.current() for _ in range(5))) == [FIRST] * 5
    assert source.loads == 1
    assert caplog.messages == [
        "cannot renew credentials server=https://kube.test error='the plugin fails'"
    ]
    source.failing = False
    await asyncio.sleep(10)
    assert (await login.current()).secret == "s3cret2"


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("s3cret-token", "with s3cret-token", "with ***"),
        ("YW5uOmh1c2gtaHVzaA==", "ann, hush-hush, YW5uOmh1c2gtaHVzaA==", "ann, ***, ***"),
    ],
)
async def test_current_and_renewed_credentials_are_hidden_in_texts(
    secret: str, text: str, shown: str
) -> None:
    async def load(_: Access | None) -> Access:
        return msgspec.structs.replace(FIRST, secret="the-next-one")

    login = Login(msgspec.structs.replace(FIRST, secret=secret), load, retry_s=1.0)
    assert secret not in repr(await login.current())
    with login.secrets:
        assert hidden(text) == shown
        await asyncio.sleep(61)
        await login.current()
        assert hidden(f"the-next-one, {text}") == f"***, {shown}"
    assert hidden(text) == text
