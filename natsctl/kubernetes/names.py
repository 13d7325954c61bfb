"""The plural, the scope and the URL paths of a kind."""

import re

import msgspec

_NAMESPACED = {
    "": (
        "ConfigMap Endpoints Event LimitRange PersistentVolumeClaim Pod PodTemplate "
        "ReplicationController ResourceQuota Secret Service ServiceAccount"
    ),
    "apps": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "autoscaling": "HorizontalPodAutoscaler",
    "batch": "CronJob Job",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "events.k8s.io": "Event",
    "networking.k8s.io": "Ingress NetworkPolicy",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "Role RoleBinding",
    "storage.k8s.io": "CSIStorageCapacity",
}
_CLUSTER_SCOPED = {
    "": "Namespace Node PersistentVolume",
    "admissionregistration.k8s.io": (
        "MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
        "ValidatingWebhookConfiguration"
    ),
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "apiregistration.k8s.io": "APIService",
    "certificates.k8s.io": "CertificateSigningRequest",
    "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    "networking.k8s.io": "IngressClass",
    "node.k8s.io": "RuntimeClass",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding",
    "scheduling.k8s.io": "PriorityClass",
    "storage.k8s.io": "CSIDriver CSINode StorageClass VolumeAttachment",
}
_IRREGULAR = {"Endpoints": "endpoints"}


class ResourceName(msgspec.Struct, frozen=True):
    """The name of a kind in permissions and URLs.

    `namespaced` is None if the scope is unknown. `guess` is the reason why the plural is only
    guessed, or empty.
    """

    group: str
    plural: str
    namespaced: bool | None = None
    guess: str = ""


def well_known(api_version: str, kind: str) -> ResourceName | None:
    """Return the name of a built-in kind, or None for other kinds."""
    group = api_version.rpartition("/")[0]
    for table, namespaced in ((_NAMESPACED, True), (_CLUSTER_SCOPED, False)):
        if kind in table.get(group, "").split():
            return ResourceName(group, _IRREGULAR.get(kind, plural(kind)), namespaced)
    return None


def guessed(api_version: str, kind: str, reason: str) -> ResourceName:
    """Return the regular name of a kind; *reason* is why it must be guessed."""
    return ResourceName(api_version.rpartition("/")[0], plural(kind), guess=reason)


def plural(kind: str) -> str:
    """Return the regular plural of a kind in lower case: `networkpolicies`, `gateways`."""
    word = kind.lower()
    if re.search(r"(s|x|z|ch|sh)$", word):
        return f"{word}es"
    if re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ies"
    return f"{word}s"
