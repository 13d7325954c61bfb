"""What a sync reads, calls and writes, step by step, so that a failed sync can be recorded.

The steps on a tape refer to the objects of the tables, and copy nothing. The steps of a recording
are the same, with the names of slots and the numbers of states in their places.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from natsctl.errors import NatsctlError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Stored

T = TypeVar("T")

EXTERNAL = "external"
"""The place of external resources, and the first word of the names of calls there."""
NOTHING = Raw()
"""The JSON of a value that a step does not have."""
READS = {"check_create", "get", "history", "managed"}
"""The verbs of calls that change no object."""


class RecordedError(msgspec.Struct, frozen=True):
    """An error that the handler got or raised."""

    type: str  # the name of its class, with the module unless it is a builtin
    message: str
    fields: dict[str, Any] = {}  # the fields of an error of natsctl, such as `deleted_at`

    @classmethod
    def of(cls, error: BaseException) -> "RecordedError":
        own = vars(error) if isinstance(error, NatsctlError) else {}
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
            message = "a message that cannot be read"
        fields = {name: value for name, value in own.items() if not name.startswith("_")}
        return cls(_class_name(type(error)), message, fields)


class ReadStep(msgspec.Struct, frozen=True, gc=False, tag_field="step", tag="read"):
    """A read of one object from the table of a slot.

    On a tape, `slot` is the informer, and `state` the object. In a recording, they are the name of
    the slot and the number of the state. The state is None if the object does not exist.
    """

    slot: Any
    key: str
    state: Any = None


class TargetStep(ReadStep, frozen=True, gc=False, tag_field="step", tag="target"):
    """The cached state from which a write started, which the handler does not see."""


class KeysStep(msgspec.Struct, frozen=True, gc=False, tag_field="step", tag="keys"):
    """A list of all keys of a slot."""

    slot: Any
    keys: tuple[str, ...]


class QueryStep(msgspec.Struct, frozen=True, gc=False, tag_field="step", tag="query"):
    """A query of an index of a slot, and the keys that it found."""

    slot: Any
    index: str
    value: str
    keys: tuple[str, ...]


class DependencyStep(msgspec.Struct, frozen=True, gc=False, tag_field="step", tag="reads"):
    """A read through `self.reads`, named by the text of the dependency."""

    dependency: str
    place: str
    states: tuple[Any, ...]


class StoreStep(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="step", tag="store"
):
    """A call of a store: `value` was sent, and `state` or `answer` came back, or an error."""

    place: str
    verb: str
    key: str
    value: Raw = NOTHING
    state: Any = None
    answer: Any = None
    error: RecordedError | None = None
    took_s: float = 0.0

    @property
    def writes(self) -> bool:
        return self.verb not in READS


class OutsideStep(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="step", tag="outside"
):
    """A call outside of the stores; `result` is missing if it cannot be written as JSON.

    `inner` is the number of such calls that it made itself. These come before it.
    """

    name: str
    type: str = ""
    result: Raw = NOTHING
    error: RecordedError | None = None
    took_s: float = 0.0
    inner: int = 0


Step: TypeAlias = (
    ReadStep | TargetStep | KeysStep | QueryStep | DependencyStep | StoreStep | OutsideStep
)


class Tape(list[Step]):
    """The steps of one sync in their order; a replay has a tape that answers them."""

    replays = False

    def has(self, name: str) -> bool:  # noqa: ARG002 - a replay looks it up
        """Return whether a call of that name can be made: in a replay, whether one is recorded."""
        return True

    def expected(self, place: str, key: str, revision: int) -> int:  # noqa: ARG002 - likewise
        """Return the revision that a write of the handler expects in the store below."""
        return revision

    async def call(
        self,
        place: str,
        verb: str,
        key: str,
        send: Callable[[], Coroutine[Any, Any, T]],
        value: bytes | Document = b"",
    ) -> T:
        """Make a call of a store with *send*, and note it."""
        clock = asyncio.get_running_loop().time
        begun, answer, failure = clock(), None, None
        written = value if isinstance(value, bytes) else documents.render(value)
        try:
            answer = await send()
        except BaseException as error:
            failure = RecordedError.of(error)
            raise
        finally:
            state, other = (answer, None) if isinstance(answer, Stored) else (None, answer)
            took_s = clock() - begun
            self.append(StoreStep(place, verb, key, Raw(written), state, other, failure, took_s))
        return answer

    async def outside(
        self,
        name: str,
        call: Callable[[], Awaitable[T]],
        *,
        kind: type[T] | None = None,  # noqa: ARG002 - a replay uses it
    ) -> T:
        """Make a call outside of the stores, and note it with its result as JSON.

        A replay decodes the result as *kind*, or else as its recorded class.
        """
        clock = asyncio.get_running_loop().time
        begun, before, failure, encoded = clock(), self._calls(), None, ("", NOTHING)
        try:
            result = await call()
        except BaseException as error:
            failure = RecordedError.of(error)
            raise
        else:
            encoded = _encoded(result)
        finally:
            inner, took_s = self._calls() - before, clock() - begun
            self.append(OutsideStep(name, *encoded, failure, took_s, inner))
        return result

    async def remembered(
        self,
        name: str,
        memory: Callable[[], T],
        restore: Callable[[T], None],  # noqa: ARG002 - a replay calls it
        *,
        kind: type[T] | None = None,  # noqa: ARG002 - likewise
    ) -> None:
        """Note what this process remembers of earlier syncs of the key, as *memory* returns it.

        A replay calls *restore* with the recorded memory, decoded as in `outside`.
        """
        self.append(OutsideStep(name, *_encoded(memory())))

    def _calls(self) -> int:
        return sum(isinstance(step, OutsideStep) for step in self)


def place_of(kind: Kind[Any]) -> str:
    """Return the place of the objects of a kind: `kv/BUCKET`, or `kube/API-VERSION/KIND`."""
    if isinstance(kind, KvKind):
        return f"kv/{kind.bucket}"
    return f"kube/{kind.api_version}/{kind.kind}" if isinstance(kind, KubeKind) else kind.name


def _encoded(value: object) -> tuple[str, Raw]:
    """Return the name of a value's class and its JSON, so that later changes do not matter."""
    try:
        return _class_name(type(value)), Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, RecursionError):
        return _class_name(type(value)), NOTHING


def _class_name(kind: type) -> str:
    """Return the name of a class, with the module unless it is a builtin."""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}:"
    return f"{module}{kind.__qualname__}"
