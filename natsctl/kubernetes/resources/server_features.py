"""What a server can do that older ones cannot."""

import re

import msgspec

from natsctl.errors import DECODE_ERRORS, StoreError
from natsctl.kubernetes.http.wire import Wire

STREAMING_LISTS = (1, 32)

_DIGITS = re.compile(r"\d+")


class _Version(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""  # a provider may add to it: 32+


async def streams_lists(wire: Wire) -> bool:
    """Say whether the server's version is one that can list within a watch."""
    try:
        reply = await wire.call("GET", "/version")
        version = msgspec.json.decode(reply.body, type=_Version)
    except (StoreError, *DECODE_ERRORS):
        return False  # lists in pages are had everywhere
    major, minor = (_DIGITS.match(part) for part in (version.major, version.minor))
    if major is None or minor is None:
        return False
    return (int(major[0]), int(minor[0])) >= STREAMING_LISTS
