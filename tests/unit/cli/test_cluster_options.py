"""How a command is told where the cluster is."""

from pathlib import Path

import pytest

from natsctl.daemon.settings.load import load_settings
from natsctl.daemon.settings.settings import KubeSettings
from natsctl.errors import UsageError
from natsctl.kubernetes.access.options import KubeOptions

OURS = {"NATSCTL_KUBECONFIG": "env.yaml", "NATSCTL_KUBE_CONTEXT": "lab"}


def cluster(
    environ: dict[str, str], config: Path = Path("/dev/null"), **flags: str | bool
) -> KubeOptions | None:
    return load_settings(flags, environ, config=str(config)).settings.cluster


def test_nothing_said_is_the_cluster_that_kubectl_would_speak_to() -> None:
    assert cluster({"KUBECONFIG": "k.yaml"}) == KubeSettings()


def test_our_own_variables_name_a_kubeconfig_and_a_context() -> None:
    assert cluster(OURS) == KubeSettings(kubeconfig="env.yaml", context="lab")


def test_an_option_wins_over_the_environment() -> None:
    found = cluster(OURS, kube_context="live")
    assert found == KubeSettings(kubeconfig="env.yaml", context="live")


def test_a_kubeconfig_on_the_command_line_is_meant_with_its_own_context() -> None:
    assert cluster(OURS, kubeconfig="k.yaml") == KubeSettings(kubeconfig="k.yaml")


def test_a_context_on_the_command_line_is_meant_with_its_own_cluster(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[kube]\nserver = 'https://a'\ntoken = 't'\ntimeout_s = 7\nenabled = false")
    assert cluster({}, file) is None
    assert cluster({}, file, kube_context="lab") == KubeSettings(context="lab", timeout_s=7)


@pytest.mark.parametrize("word", ["false", "no", "0", "FALSE"])
def test_no_cluster_is_looked_for_where_none_is_wanted(word: str) -> None:
    assert cluster(OURS, no_kube=True) is None
    assert cluster({**OURS, "NATSCTL_KUBE_ENABLED": word}) is None


@pytest.mark.parametrize("given", [{"kubeconfig": "k"}, {"kube_context": "c"}])
def test_a_cluster_cannot_be_named_and_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--no-kube excludes"):
        cluster({}, no_kube=True, **given)  # type: ignore[arg-type]
