"""Makes errors and classes again from their recorded names."""

import ast
import asyncio
import builtins
import sys
from contextlib import suppress
from typing import Any

from natsctl.core.tape import RecordedError
from natsctl.errors import HandlerError


async def elapsed(took_s: float, error: RecordedError | None) -> None:
    """Let a recorded call take its time, and raise its error; a cancelled call never ends."""
    await asyncio.sleep(took_s)
    if error is None:
        return
    if error.type.endswith("CancelledError"):
        await asyncio.get_running_loop().create_future()
    raise error_of(error)


def error_of(recorded: RecordedError) -> BaseException:
    """Return an error that was recorded; a `HandlerError` if its class cannot be made again."""
    kind = class_of(recorded.type)
    if kind is KeyError:
        return KeyError(_literal(recorded.message))
    if kind is not None and issubclass(kind, Exception):
        with suppress(Exception):  # a user's class may need other arguments
            return _error_of(kind, recorded)
    return HandlerError(f"{recorded.type}: {recorded.message}")


def class_of(name: str) -> type[Any] | None:
    """Return the loaded class of a recorded name, None if there is none."""
    module, _, path = name.rpartition(":")
    if name == "NoneType":
        return type(None)
    value: Any = sys.modules.get(module) if module else builtins
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else None


def _error_of(kind: type[Exception], recorded: RecordedError) -> Exception:
    fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in recorded.fields.items()
    }
    delay_s = fields.pop("delay_s", None)
    if delay_s is not None:
        return kind(delay_s, recorded.message)
    return kind(recorded.message, **fields)


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
