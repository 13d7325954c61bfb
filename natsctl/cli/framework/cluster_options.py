"""How a command is told where the Kubernetes cluster is."""

from natsctl.cli.framework.options import handed

clustered = handed("cluster", "kube", of=lambda effective: effective.settings.cluster)
"""Give a command the flags that say where the cluster is.

It is handed what is set as `cluster`: None where no cluster is to be looked for.
"""
