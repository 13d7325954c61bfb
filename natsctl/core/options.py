"""Checks the options of a controller before it runs."""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
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


def _is_seconds(value: object, *, least: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and least <= value < math.inf  # type: ignore[operator]  # a number


WORKERS = Option(
    f"a whole number from 1 to {WORKERS_MAX}",
    lambda value: type(value) is int and 1 <= value <= WORKERS_MAX,
)
SECONDS = Option("a number of seconds above 0", partial(_is_seconds, least=math.ulp(0.0)))
SECONDS_OR_ZERO = Option("a number of seconds, 0 or more", partial(_is_seconds, least=0.0))
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
    public = ((name, it) for parent in cls.__mro__ for name, it in vars(parent).items())
    for name, value in public:
        if name.startswith("_") or hasattr(base, name):
            continue
        accepting = [it for it, rule in options.items() if rule is not TEXT and rule.accepts(value)]
        for option in difflib.get_close_matches(name.lower(), accepting, 1, SIMILARITY_MIN):
            raise UsageError(
                f"{cls.__name__}: {name} = {shown(value)} is not an option; did you mean {option}?"
            )
    for name, signature in methods.items():
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
    _checked.add(cls)


_checked: WeakSet[type] = WeakSet()  # classes whose attributes and methods are correct
