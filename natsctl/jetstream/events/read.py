"""Reads the events of a key from the stream of events."""

import base64
from contextlib import suppress

import msgspec

from natsctl.errors import DECODE_ERRORS, NotFoundError, StoreMissingError
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.events.recorder import PREFIX, STREAM, KvEvent

EVENTS_MAX = 25  # that are read; the stream keeps no more of a key

_events = msgspec.json.Decoder(KvEvent)


async def events_of(connection: Connection, controller: str, key: str) -> list[KvEvent]:
    """Return the events about a controller's key, oldest first; none if there is no stream.

    The stream has an event once for each time that its count grew: only the newest is returned.
    Messages that are no events are left out. Raises as `Connection.api` does.
    """
    found: dict[tuple[str, ...], KvEvent] = {}
    query: dict[str, object] = {"seq": 1, "next_by_subj": f"{PREFIX}.{controller}.{key}"}
    for _ in range(EVENTS_MAX):
        try:
            reply = await connection.api(f"STREAM.MSG.GET.{STREAM}", query)
        except (NotFoundError, StoreMissingError):
            break
        message = reply["message"]
        query["seq"] = message["seq"] + 1
        with suppress(*DECODE_ERRORS):
            event = _events.decode(base64.b64decode(message.get("data", "")))
            same = (event.type, event.reason, event.message, event.first_timestamp)
            found.pop(same, None)
            found[same] = event
    return list(found.values())
