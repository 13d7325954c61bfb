"""The processes of this machine, and their descendants."""

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [
            int(child) for thread in threads for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [process for child in children for process in (child, *descendants(child))]


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
