"""Handles the errors of tasks that run in the background."""

import asyncio
from typing import Any


def retrieved(task: "asyncio.Task[Any]") -> None:
    """Mark the error of a task as seen, because the next reader raises it."""
    if not task.cancelled():
        task.exception()
