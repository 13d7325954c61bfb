"""Writes and reads times as texts (RFC 3339)."""

from datetime import UTC, datetime


def time_text(time: datetime, *, timespec: str = "seconds") -> str:
    """Return the text of a time in UTC, such as `2026-11-22T09:00:00Z`."""
    return time.isoformat(timespec=timespec).replace("+00:00", "Z")


def time_in(text: str) -> datetime | None:
    """Return the time in a text, in UTC unless the text states a zone; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
