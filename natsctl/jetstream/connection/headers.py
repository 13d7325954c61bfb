"""Reads the header block of a NATS message."""

from typing import Final

STATUS: Final = "Status"


def parse_headers(raw: bytes) -> dict[str, str]:
    """Return the headers of a block; `Status` holds the status of the first line."""
    first, *lines = raw.decode(errors="replace").split("\r\n")
    pairs = (line.partition(":") for line in lines if ":" in line)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    _, _, status = first.partition(" ")
    return {STATUS: status, **headers} if status else headers
