"""How a command is told where the Kubernetes cluster is: options, the environment."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import typer

from natsctl.errors import UsageError
from natsctl.kube.options import KubeOptions

T = TypeVar("T")

SECTION = "Kubernetes"

_GIVEN = "cluster"  # the parameter that a command is handed them by
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "kubeconfig": (
        str | None,
        typer.Option(
            metavar="FILE",
            help="a kubeconfig, instead of kubectl's own [env: NATSCTL_KUBECONFIG, KUBECONFIG]",
            rich_help_panel=SECTION,
        ),
    ),
    "kube_context": (
        str | None,
        typer.Option(
            metavar="NAME",
            help="a context of the kubeconfig [env: NATSCTL_KUBE_CONTEXT]",
            rich_help_panel=SECTION,
        ),
    ),
    "no_kube": (
        bool,
        typer.Option("--no-kube", help="never look for a cluster", rich_help_panel=SECTION),
    ),
}


def clustered(work: Callable[..., T]) -> Callable[..., T]:
    """Give a command the options that say where the cluster is.

    *work* is handed what they mean as `cluster`: None where no cluster is to be looked for.
    """
    own = inspect.signature(work).parameters.values()

    @functools.wraps(work)
    def command(*args: Any, **given: Any) -> T:
        flags = {name: given.pop(name) for name in _OPTIONS}
        given[_GIVEN] = kube_options(os.environ, **flags)
        return work(*args, **given)

    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if kind is bool else None,
            annotation=Annotated[kind, option],
        )
        for name, (kind, option) in _OPTIONS.items()
    ]
    described = inspect.Signature([*(each for each in own if each.name != _GIVEN), *more])
    command.__signature__ = described  # type: ignore[attr-defined]  # what typer reads
    return command


def kube_options(
    environ: Mapping[str, str],
    *,
    kubeconfig: str | None = None,
    kube_context: str | None = None,
    no_kube: bool = False,
) -> KubeOptions | None:
    """Return how to connect: what was given, else what the environment says; None: not at all.

    KUBECONFIG and what lies beneath it are found by whoever connects, as kubectl finds them. Who
    names a kubeconfig on the command line means its own context.
    """
    if no_kube and (kubeconfig or kube_context):
        raise UsageError("--no-kube excludes --kubeconfig and --kube-context")
    if no_kube:
        return None
    if not (kubeconfig or kube_context):
        kube_context = environ.get("NATSCTL_KUBE_CONTEXT")
    if not kubeconfig:
        kubeconfig = environ.get("NATSCTL_KUBECONFIG")
    return KubeOptions(kubeconfig=kubeconfig or None, context=kube_context or None)


def words(cluster: KubeOptions | None) -> list[str]:
    """Return the options of a command line that mean the same."""
    if cluster is None:
        return ["--no-kube"]
    found = (("--kubeconfig", cluster.kubeconfig), ("--kube-context", cluster.context))
    return [word for flag, text in found if text is not None for word in (flag, text)]
