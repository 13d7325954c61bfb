"""Checks the options of a controller before it runs."""

import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from weakref import WeakSet

import msgspec

from natsctl.core.retry import RateLimit
from natsctl.core.task_group import WORKERS_MAX
from natsctl.errors import UsageError
from natsctl.telemetry.hiding import shown

SIMILARITY_MIN = 0.8  # between a class attribute and the option that it misspells


class Option(msgspec.Struct, frozen=True):
    """An option: `accepts` tests a value, and `needs` describes an acceptable value."""

    needs: str
    accepts: Callable[[object], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_seconds(value: object, *, least: float) -> bool:
    return _is_number(value) and least <= value < math.inf  # type: ignore[operator]  # a number


WORKERS = Option(
    f"a whole number from 1 to {WORKERS_MAX}",
    lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= WORKERS_MAX
    ),
)
SECONDS = Option(
    "a number of seconds above 0",
    lambda value: _is_seconds(value, least=math.ulp(0.0)),
)
SECONDS_OR_ZERO = Option(
    "a number of seconds, 0 or more", lambda value: _is_seconds(value, least=0.0)
)
FLAG = Option("True or False", lambda value: isinstance(value, bool))
TEXT = Option("a text", lambda value: isinstance(value, str))
POLICY = Option(
    "a function of an error and the failures in a row, not `async def`",
    lambda value: callable(value) and not inspect.iscoroutinefunction(value),
)
RATE = Option(
    "RateLimit(qps=…, burst=…), or None",
    lambda value: value is None or isinstance(value, RateLimit),
)


def check_options(owner: str, options: Mapping[str, Option], values: Mapping[str, object]) -> None:
    """Raise `UsageError` for the first value that its option does not accept."""
    for name, option in options.items():
        if name in values and not option.accepts(values[name]):
            raise UsageError(
                f"{owner}: {name} is {shown(values[name])}, and must be {option.needs}"
            )


def check_class(
    controller: object,
    base: type,
    options: Mapping[str, Option],
    methods: Mapping[str, str],
) -> None:
    """Check a controller whose options are attributes of its class or of the instance.

    *methods* has the first line of each method that users write, by name. Raises `UsageError` if an
    option does not accept its value, if a class attribute looks like a misspelt option, or if a
    method has another signature.
    """
    cls = type(controller)
    check_options(cls.__name__, options, {name: getattr(controller, name) for name in options})
    if cls in _checked:
        return
    for name, value in _own_attributes(cls, base):
        option = _misspelt(name, value, options)
        if option:
            raise UsageError(
                f"{cls.__name__}: {name} = {shown(value)} is not an option; did you mean {option}?"
            )
    for name, signature in methods.items():
        _check_method(cls, name, signature)
    _checked.add(cls)


_checked: WeakSet[type] = WeakSet()  # classes whose attributes and methods are correct


def _check_method(cls: type, name: str, signature: str) -> None:
    method = inspect.unwrap(getattr(cls, name))
    is_async = inspect.iscoroutinefunction(method)
    if is_async != signature.startswith("async "):
        is_not = "is" if is_async else "is not"
        raise UsageError(f"{cls.__name__}.{name} {is_not} `async def`: write `{signature}`")
    arguments = ["self", *signature.partition("(self")[2].strip(",) ").split()]
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        raise UsageError(
            f"{cls.__name__}.{name} takes other arguments: write `{signature}`"
        ) from None


def _own_attributes(cls: type, base: type) -> Iterator[tuple[str, object]]:
    """Return the public attributes of the user's classes."""
    for parent in cls.__mro__:
        for name, value in vars(parent).items():
            if not name.startswith("_") and not hasattr(base, name):
                yield name, value


def _misspelt(name: str, value: object, options: Mapping[str, Option]) -> str:
    """Return the similar option that accepts the value; empty if there is none."""
    accepting = [
        option for option, rule in options.items() if rule is not TEXT and rule.accepts(value)
    ]
    similar = difflib.get_close_matches(name.lower(), accepting, cutoff=SIMILARITY_MIN)
    return similar[0] if similar else ""
