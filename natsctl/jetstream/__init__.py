"""Objects kept in NATS JetStream KV.

nats-py is imported without aiohttp, which it needs only for web sockets, and which would take 11 MB
and a tenth of a second.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_TRANSPORT = "nats.aio.transport"
_FOR_WEB_SOCKETS = ("aiohttp", "multidict")


class _LazyModule(ModuleType):
    """A module that is imported when its first attribute is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _TransportLoader(SourceFileLoader):
    """Loads the transports of nats-py with lazy modules for the packages for web sockets."""

    def exec_module(self, module: ModuleType) -> None:
        lazy = {name: _LazyModule(name) for name in _FOR_WEB_SOCKETS if name not in sys.modules}
        sys.modules.update(lazy)
        try:
            super().exec_module(module)
        finally:
            for name in lazy:
                del sys.modules[name]


class _TransportFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TRANSPORT:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _TransportLoader(fullname, spec.loader.path)
        return spec


sys.meta_path.insert(0, _TransportFinder())
