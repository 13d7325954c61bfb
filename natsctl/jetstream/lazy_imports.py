"""Imports nats-py without aiohttp, which nats-py needs only for web sockets.

The import of aiohttp takes 11 MB of memory and a tenth of a second.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_FOR_WEB_SOCKETS = ("aiohttp", "multidict")


class _LazyModule(ModuleType):
    """A module that is imported when its first attribute is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def import_nats() -> None:
    """Import nats-py, whose references to the packages for web sockets are lazy modules.

    Does nothing if nats-py is imported already. Packages that are imported already stay.
    """
    lazy = {name: _LazyModule(name) for name in _FOR_WEB_SOCKETS if name not in sys.modules}
    sys.modules.update(lazy)
    try:
        importlib.import_module("nats.aio.transport")
    finally:
        for name in lazy:
            del sys.modules[name]
