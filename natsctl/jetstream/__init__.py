"""Objects kept in NATS JetStream KV.

nats-py is imported without aiohttp, which it needs only for web sockets, and which would take 11 MB
and a tenth of a second; `reader` imports it then.
"""

import importlib
import sys
from typing import Any

_modules: dict[str, Any] = sys.modules  # with None, an import fails
_hidden = [name for name in ("aiohttp", "multidict") if name not in _modules]
_modules.update(dict.fromkeys(_hidden))
try:
    importlib.import_module("nats.aio.transport")
finally:
    for _name in _hidden:
        del _modules[_name]
