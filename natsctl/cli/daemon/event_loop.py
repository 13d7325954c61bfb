"""Which event loop a daemon runs on: uvloop where it is installed."""

import asyncio
from collections.abc import Callable

LoopMaker = Callable[[], asyncio.AbstractEventLoop]

try:
    import uvloop
except ImportError:  # it has no build for this system
    daemon_loop: LoopMaker = asyncio.new_event_loop
else:
    daemon_loop = uvloop.new_event_loop
