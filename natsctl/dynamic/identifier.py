"""Identifiers of objects in Kubernetes and NATS."""

import msgspec

from natsctl.errors import InvalidInputError, UsageError
from natsctl.model.manifests import joined
from natsctl.model.selectors import Selector

KV_GROUP = "nats"
KV_VERSION = "kv"


class GroupVersionKind(msgspec.Struct, frozen=True, order=True):
    """A kind: `("apps", "v1", "Deployment")`, or `("nats", "kv", BUCKET)`.

    Its string form is `apps/v1, Kind=Deployment`.
    """

    group: str
    version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.version}, Kind={self.kind}"

    @property
    def api_version(self) -> str:
        """The `apiVersion` of manifests of this kind: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def in_nats(self) -> bool:
        """True if the kind is a bucket."""
        return (self.group, self.version) == (KV_GROUP, KV_VERSION)


def kv_kind(bucket: str) -> GroupVersionKind:
    """Return the kind of the objects in a JetStream KV bucket."""
    return GroupVersionKind(KV_GROUP, KV_VERSION, bucket)


class ObjectIdentifier(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """Names one object, the objects that a label selector matches, or all objects of a kind.

    For Kubernetes, the fields have their usual meaning. For NATS, the group is `nats`, the version
    is `kv`, and the kind is the bucket. `name` is the key without its first tokens, if `namespace`
    has them: the object `team-a.shop` is `shop` in the namespace `team-a`, or just `team-a.shop`.

    An identifier has exactly one of these:

    - `name`: identifies one object.
    - `selector`: identifies the objects whose labels match, in the syntax of `kubectl -l`.
    - `everything=True`: identifies all objects.

    The last two are limited to `namespace` if that is set.

    Seed: stolostron kubernetes-dependency-watches v0.5.2.
    """

    group: str = ""
    version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    selector: str = ""
    everything: bool = False

    def __str__(self) -> str:
        return (
            f"{self.group_version_kind()}, Namespace={self.namespace}, "
            f"Name={self.name}, Selector={'(everything)' if self.everything else self.selector}"
        )

    def group_version_kind(self) -> GroupVersionKind:
        """Return the kind of the identified objects."""
        return GroupVersionKind(self.group, self.version, self.kind)

    @property
    def key(self) -> str:
        """The key of a named object in its store; empty for other identifiers."""
        if not self.name:
            return ""
        if self.group_version_kind().in_nats:
            return f"{self.namespace}.{self.name}" if self.namespace else self.name
        return joined(self.namespace, self.name)

    def validate(self) -> None:
        """Raise `InvalidInputError` if the identifier is incomplete or contradicts itself.

        It needs a version, a kind, and exactly one of name, selector and `everything`.
        """
        if not self.version or not self.kind:
            raise InvalidInputError(f"an object identifier needs a version and a kind: {self}")
        if (bool(self.name), bool(self.selector), self.everything).count(True) != 1:
            raise InvalidInputError(
                "an object identifier needs exactly one of name, selector and everything=True: "
                f"{self}"
            )
        try:
            Selector.parse(self.selector)
        except UsageError as error:
            raise InvalidInputError(f"{self}: {error}") from error


def identified(
    gvk: GroupVersionKind, namespace: str, *, name: str = "", selector: str = ""
) -> ObjectIdentifier:
    """Return the identifier of one object, of those that match, or else of all of the kind."""
    return ObjectIdentifier(
        group=gvk.group,
        version=gvk.version,
        kind=gvk.kind,
        namespace=namespace,
        name=name,
        selector=selector,
        everything=not (name or selector),
    )
