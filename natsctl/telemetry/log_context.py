"""What the work under way is about, so that a log line can say it.

Each task has facts of its own, and hands them on to the tasks that it makes.
"""

from collections.abc import Mapping
from contextvars import ContextVar

_about: ContextVar[Mapping[str, object]] = ContextVar("about")
_NOTHING: Mapping[str, object] = {}


def about() -> Mapping[str, object]:
    """Return the facts of the current task: `controller`, `key`, `operation`, `attempt`."""
    return _about.get(_NOTHING)


def bind(**facts: object) -> None:
    """Say these of the current task from now on, besides what was said of it before."""
    _about.set({**_about.get(_NOTHING), **facts})


def detach() -> None:
    """Say nothing more of the current task but its controller: it outlives what began it."""
    _about.set({name: fact for name, fact in about().items() if name == "controller"})
