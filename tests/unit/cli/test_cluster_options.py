"""How a command is told where the cluster is."""

import pytest

from natsctl.cli.cluster import kube_options, words
from natsctl.errors import UsageError
from natsctl.kube.options import KubeOptions

OURS = {"NATSCTL_KUBECONFIG": "env.yaml", "NATSCTL_KUBE_CONTEXT": "lab"}


def test_nothing_said_is_the_cluster_that_kubectl_would_speak_to() -> None:
    assert kube_options({"KUBECONFIG": "k.yaml"}) == KubeOptions()


def test_our_own_variables_name_a_kubeconfig_and_a_context() -> None:
    assert kube_options(OURS) == KubeOptions(kubeconfig="env.yaml", context="lab")


def test_an_option_wins_over_the_environment() -> None:
    found = kube_options(OURS, kube_context="live")
    assert found == KubeOptions(kubeconfig="env.yaml", context="live")


def test_a_kubeconfig_on_the_command_line_is_meant_with_its_own_context() -> None:
    assert kube_options(OURS, kubeconfig="k.yaml") == KubeOptions(kubeconfig="k.yaml")


def test_no_cluster_is_looked_for_where_none_is_wanted() -> None:
    assert kube_options(OURS, no_kube=True) is None


@pytest.mark.parametrize("given", [{"kubeconfig": "k"}, {"kube_context": "c"}])
def test_a_cluster_cannot_be_named_and_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="--no-kube excludes"):
        kube_options({}, no_kube=True, **given)  # type: ignore[arg-type]  # two texts


@pytest.mark.parametrize(
    ("meant", "typed"),
    [
        (None, ["--no-kube"]),
        (KubeOptions(), []),
        (
            KubeOptions(kubeconfig="k", context="c"),
            ["--kubeconfig", "k", "--kube-context", "c"],
        ),
    ],
)
def test_the_words_of_a_command_mean_the_same(meant: KubeOptions | None, typed: list[str]) -> None:
    assert words(meant) == typed
