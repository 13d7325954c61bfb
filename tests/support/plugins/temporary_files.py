"""Puts the temporary folders of tests into memory, where a server's write does not wait for a disk.

`PYTEST_DEBUG_TEMPROOT` names another place.
"""

import os
import shutil
from pathlib import Path

import pytest

PLACE = "PYTEST_DEBUG_TEMPROOT"  # pytest reads it when a test requests the first folder
MEMORY = Path("/dev/shm")
BYTES_MIN = 4 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Choose memory unless the user has chosen a place, or there is too little memory."""
    is_chosen = PLACE in os.environ or config.option.basetemp is not None
    if not is_chosen and _is_suitable(MEMORY):
        os.environ[PLACE] = str(MEMORY)


def _is_suitable(folder: Path) -> bool:
    """Return whether this user may write and execute files, and whether there is room for them."""
    if not os.access(folder, os.W_OK):
        return False
    runs_programs = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return runs_programs and shutil.disk_usage(folder).free >= BYTES_MIN
