"""Answers for the view of one key: the reasons of its state, its objects and its revisions."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec

from natsctl.console.answers import Answer
from natsctl.console.keys import Keys
from natsctl.console.masking import ShownValue, shown_differences, shown_value
from natsctl.core.tree import Branch
from natsctl.daemon.api.messages import KeyExplanation
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import (
    InvalidObjectError,
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.store import BucketStore
from natsctl.model.keys import check_key
from natsctl.model.plans.differences import Difference
from natsctl.operate.absent import explained_without_daemon, known_controllers
from natsctl.operate.fleet import Fleet
from natsctl.operate.identity import Identity, identity_on
from natsctl.operate.problems import Partial, Problem, missing, problem_of

T = TypeVar("T")

DIFFERENCES_MAX = 500
CHANGED_MAX = 5  # fields that a revision names
COMPARED_MAX = 256 * 1024  # bytes of a value whose changed fields a revision names


class Revision(msgspec.Struct, frozen=True):
    """A revision of an object; `changed` has the first fields that differ from the one before."""

    revision: int
    created: str
    deleted: bool
    bytes: int
    changed: list[str]


class KeyView(Answer, frozen=True, kw_only=True):
    """Everything about one key; `errors` states why a part is None.

    `off` has the actions that the state of the key or the user's permissions rule out, each with
    the reason.
    """

    controller: str
    key: str
    bucket: str
    explain: list[KeyExplanation] | None = None
    tree: Branch | None = None
    object: ShownValue | None = None
    revisions: list[Revision] | None = None
    errors: dict[str, Problem] = msgspec.field(default_factory=dict)
    off: dict[str, str] = msgspec.field(default_factory=dict)


class Traceback(Answer, frozen=True, kw_only=True):
    """The traceback of the last failed sync, with its frames; empty if it was recorded without."""

    text: str


class ShownManifest(Answer, frozen=True, kw_only=True):
    """An object of a tree as JSON."""

    text: str


class _Outcome(msgspec.Struct, frozen=True):
    traceback: str = ""


class _Recording(msgspec.Struct, frozen=True):
    outcome: _Outcome = _Outcome()


class Comparison(Answer, frozen=True, kw_only=True):
    """The fields in which two revisions differ; `more` counts those that are left out."""

    from_: int = msgspec.field(name="from")
    to: int
    differences: list[Difference]
    more: int


class KeyViews:
    """The views of keys of one console."""

    def __init__(self, fleet: Fleet, keys: Keys) -> None:
        self._connection = fleet.connection
        self._fleet = fleet
        self._keys = keys
        self._identity: Identity | None = None

    async def identity(self) -> Identity:
        """Return who looks at the page, and what this user may do."""
        if self._identity is None:
            self._identity = await identity_on(self._connection)
        return self._identity

    async def view(self, controller: str, key: str, bucket: str) -> KeyView:
        """Return the view of a primary of a controller, or else of an object in a bucket."""
        if controller:
            view = await self.of_controller(controller, key, bucket)
        else:
            view = await self.of_bucket(bucket, key)
        return msgspec.structs.replace(view, off=_off(view, await self.identity()))

    async def of_controller(self, controller: str, key: str, bucket: str = "") -> KeyView:
        """Return the view of a primary, from NATS alone if no daemon runs the controller."""
        check_key(key)
        try:
            daemons = await self._fleet.daemons()
            daemons.controller(controller)
        except (NoDaemonError, NotFoundError) as error:
            return await self._without_daemon(controller, key, bucket, error)
        errors: dict[str, Problem] = {}
        explain, tree, object_bucket = await asyncio.gather(
            _part("explain", self._explain(controller, key), errors),
            _part("tree", self._tree(controller, key), errors),
            _part("object", self._keys.bucket_of(controller, bucket), errors),
        )
        if object_bucket is None and tree is not None and tree.bucket:
            object_bucket = tree.bucket
            errors.pop("object", None)
        view = await self._stored(object_bucket, key, errors)
        if view.object is None and explain is not None and not explain.found:
            raise NotFoundError(f"{controller} has no {key}, and no sync or event of it")
        return msgspec.structs.replace(
            view,
            controller=controller,
            explain=None if explain is None else explain.explanations,
            tree=tree,
            partial=None if explain is None else explain.partial,
        )

    async def _without_daemon(
        self, controller: str, key: str, bucket: str, error: NatsctlError
    ) -> KeyView:
        """Return what NATS has of the key; raises *error* if the controller does not exist."""
        sources = (await known_controllers(self._connection)).get(controller)
        if sources is None:
            raise error
        explanations = await explained_without_daemon(
            self._connection, key, lambda source: bucket in ("", source.bucket), controller
        )
        place = bucket or next((source.bucket for source in sources if source.bucket), "")
        problem = Problem("no_daemon", f"no daemon runs {controller}")
        view = await self._stored(place, key, {"tree": problem, "explain": problem})
        if view.object is None and not explanations:
            raise NotFoundError(f"{controller} has no {key}, and no sync or event of it")
        return msgspec.structs.replace(view, controller=controller, explain=explanations or None)

    async def of_bucket(self, bucket: str, key: str) -> KeyView:
        """Return the view of an object in a bucket, whether or not a daemon runs."""
        view = await self._stored(bucket, check_key(key), {})
        if not view.revisions and "revisions" not in view.errors:
            raise NotFoundError(f"{bucket} has no {key}, and no revision of it")
        return view

    async def traceback(self, controller: str, key: str) -> Traceback:
        """Return the traceback of the last failed sync; raises `NotFoundError` if none is kept."""
        daemons = await self._fleet.offering(Verb.RECORDING, controller)
        recording = await daemons.recording(controller, check_key(key))
        return Traceback(text=msgspec.json.decode(recording, type=_Recording).outcome.traceback)

    async def manifest(self, controller: str, kind: str, key: str) -> ShownManifest:
        """Return an object of the tree, as a daemon last saw it."""
        daemons = await self._fleet.offering(Verb.MANIFEST, controller)
        return ShownManifest(text=(await daemons.manifest(controller, kind, key)).text)

    async def comparison(
        self, controller: str, bucket: str, key: str, revisions: Sequence[int | None]
    ) -> Comparison:
        """Return how two revisions differ: by default the newest, and the one before the other.

        Raises `NotFoundError` if the bucket does not have a revision any more.
        """
        object_bucket = await self._keys.bucket_of(controller, bucket) if controller else bucket
        store = BucketStore(Bucket(self._connection, object_bucket))
        messages = await store.messages(check_key(key))
        if not messages:
            raise NotFoundError(f"{object_bucket} has no {key}, and no revision of it")
        first, second = revisions
        after = _revision(messages, second or messages[-1].revision, key)
        earlier = [message for message in messages if message.revision < after.revision]
        before = earlier[-1] if earlier else None
        if first is not None:
            before = _revision(messages, first, key)
        differences = shown_differences(store, before, after)
        return Comparison(
            from_=0 if before is None else before.revision,
            to=after.revision,
            differences=differences[:DIFFERENCES_MAX],
            more=len(differences[DIFFERENCES_MAX:]),
        )

    async def _explain(self, controller: str, key: str) -> "_Explained":
        daemons = await self._fleet.offering(Verb.EXPLAIN, controller)
        explanations = await daemons.explain(controller, key)
        present = [
            explanation for explanation in explanations if explanation.present or explanation.past
        ]
        complete = any(explanation.here and explanation.member for explanation in explanations)
        ids = {explanation.daemon.id for explanation in explanations}
        partial = None if complete else missing(daemons.running(controller), ids)
        return _Explained(present or explanations, bool(present), partial)

    async def _tree(self, controller: str, key: str) -> Branch:
        daemons = await self._fleet.offering(Verb.TREE, controller)
        return await daemons.tree(controller, key)

    async def _stored(self, bucket: str | None, key: str, errors: dict[str, Problem]) -> KeyView:
        """Return the parts of the view that the bucket has."""
        revisions: list[Revision] | None = None
        shown: ShownValue | None = None
        if bucket:
            store = BucketStore(Bucket(self._connection, bucket))
            messages = await _part("revisions", store.messages(key), errors)
            if messages is None:
                errors["object"] = errors["revisions"]
            elif not messages or messages[-1].marker:
                errors["object"] = Problem("not_found", f"{bucket} has no {key}")
            else:
                shown = shown_value(messages[-1])
            revisions = None if messages is None else _described(store, messages)
        elif "object" not in errors:
            in_cluster = Problem("not_found", "the object is in a cluster: see kubectl get")
            errors |= {"object": in_cluster, "revisions": in_cluster}
        return KeyView(
            controller="",
            key=key,
            bucket=bucket or "",
            object=shown,
            revisions=revisions,
            errors=errors,
        )


def _off(view: KeyView, identity: Identity) -> dict[str, str]:
    """Return why each action is not possible now."""
    off = _asking_off(view, identity) if view.controller else {}
    written = f"$KV.{view.bucket}.{view.key}"
    for action in ("pause", "resume", "edit", "rollback"):
        if not view.bucket:
            off[action] = "it is in a cluster: use kubectl"
        elif not identity.may_publish(written):
            off[action] = f"your NATS user may not publish to {written}"
        elif view.object is None and action in ("pause", "edit"):
            off[action] = "it does not exist"
    if view.object is not None and view.object.kind != "json":
        off.setdefault("edit", "its value is not JSON")
    return off


def _asking_off(view: KeyView, identity: Identity) -> dict[str, str]:
    """Return why each action is not possible that a daemon carries out."""
    off: dict[str, str] = {}
    verbs = {"resync": Verb.RESYNC, "plan": Verb.PLAN, "record": Verb.RECORD}
    for action, verb in {**verbs, "recording": Verb.RECORDING}.items():
        subject = verb.subject(view.controller)
        if not identity.may_publish(subject):
            off[action] = f"your NATS user may not publish to {subject}"
        elif not any(explanation.daemon.pid for explanation in view.explain or []):
            off[action] = f"no daemon of {view.controller} answers"
    if any(explanation.paused for explanation in view.explain or []):
        off.setdefault("resync", "it is paused: resume it first")
    return off


class _Explained(msgspec.Struct, frozen=True):
    explanations: list[KeyExplanation]
    found: bool
    partial: Partial | None


async def _part(name: str, work: Awaitable[T], errors: dict[str, Problem]) -> T | None:
    """Return the result of *work*; if it fails, None, with the problem added to *errors*."""
    try:
        return await work
    except (NatsctlError, TimeoutError) as error:
        errors[name] = problem_of(error)
        return None


def _revision(messages: Sequence[Message], revision: int, key: str) -> Message:
    for message in messages:
        if message.revision == revision:
            return message
    if revision < messages[0].revision:
        raise NotFoundError(f"revision {revision} of {key} is not kept any more")
    raise UsageError(f"{revision} is not a revision of {key}")


def _described(store: BucketStore, messages: Sequence[Message]) -> list[Revision]:
    described: list[Revision] = []
    before: Message | None = None
    for message in messages:
        described.append(_described_one(message, _changed(store, before, message)))
        before = message
    return described


def _described_one(message: Message, changed: Sequence[str] = ()) -> Revision:
    deleted = message.marker is not None
    return Revision(message.revision, message.created, deleted, len(message.value), list(changed))


def _changed(store: BucketStore, before: Message | None, after: Message) -> list[str]:
    if before is None or before.marker or after.marker:
        return []
    if max(len(before.value), len(after.value)) > COMPARED_MAX:
        return []
    try:
        differences = shown_differences(store, before, after)
    except InvalidObjectError:
        return []
    return [difference.path for difference in differences[:CHANGED_MAX]]
