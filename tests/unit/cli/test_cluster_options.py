"""Flags, the environment and a settings file name the Kubernetes cluster of a command."""

from pathlib import Path

import pytest

from natsctl import KubeOptions
from natsctl.daemon.settings.load import load_settings
from natsctl.daemon.settings.settings import KubeSettings
from natsctl.errors import UsageError

ENVIRON = {"NATSCTL_KUBECONFIG": "env.yaml", "NATSCTL_KUBE_CONTEXT": "lab"}


def cluster(
    environ: dict[str, str], config: Path = Path("/dev/null"), **flags: str | bool
) -> KubeOptions | None:
    return load_settings(flags, environ, config=str(config)).settings.cluster


def test_the_default_is_the_cluster_of_kubectl() -> None:
    assert cluster({"KUBECONFIG": "k.yaml"}) == KubeSettings()


def test_natsctl_variables_name_a_kubeconfig_and_a_context() -> None:
    assert cluster(ENVIRON) == KubeSettings(kubeconfig="env.yaml", context="lab")


def test_an_option_wins_over_the_environment() -> None:
    options = cluster(ENVIRON, kube_context="live")
    assert options == KubeSettings(kubeconfig="env.yaml", context="live")


def test_a_kubeconfig_flag_ignores_the_context_of_the_environment() -> None:
    assert cluster(ENVIRON, kubeconfig="k.yaml") == KubeSettings(kubeconfig="k.yaml")


def test_a_context_flag_ignores_the_cluster_of_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[kube]\nserver = 'https://a'\ntoken = 't'\ntimeout_s = 7\nenabled = false")
    assert cluster({}, file) is None
    assert cluster({}, file, kube_context="lab") == KubeSettings(context="lab", timeout_s=7)


@pytest.mark.parametrize("word", ["false", "no", "0", "FALSE"])
def test_a_disabled_cluster_is_none(word: str) -> None:
    assert cluster(ENVIRON, no_kube=True) is None
    assert cluster({**ENVIRON, "NATSCTL_KUBE_ENABLED": word}) is None


@pytest.mark.parametrize("given", [{"kubeconfig": "k"}, {"kube_context": "c"}])
def test_no_kube_excludes_flags_that_name_a_cluster(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--no-kube excludes"):
        cluster({}, no_kube=True, **given)  # type: ignore[arg-type]
