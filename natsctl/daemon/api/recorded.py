"""Answers requests to record keys, and requests for recordings."""

import msgspec

from natsctl.core.hosted import Hosted
from natsctl.core.recording.recordings import Recordings
from natsctl.daemon.api.messages import DaemonProcess, Recorded, RecordingPart
from natsctl.errors import NotFoundError, UsageError
from natsctl.model.keys import check_key

STOP = "-"  # the first word of a request that ends the recording of keys
SHARE = 3  # JSON in JSON takes at most so many times its length
KEYS_MAX = 1_000  # that a controller records at a time


def record_keys(runtime: Hosted, daemon: DaemonProcess, words: list[str]) -> Recorded:
    """Record the syncs of keys, or only failed ones again if the first word is `-`.

    Returns all keys that are recorded. Raises `UsageError` for too many keys.
    """
    recordings = _recordings(runtime)
    if words[:1] == [STOP]:
        recordings.deselect(runtime.name, words[1:] or recordings.selected(runtime.name))
    else:
        if len({*recordings.selected(runtime.name), *words}) > KEYS_MAX:
            raise UsageError(f"record at most {KEYS_MAX} keys of a controller at a time")
        recordings.select(runtime.name, words)
    keys = recordings.selected(runtime.name)
    return Recorded(controller=runtime.name, daemon=daemon, keys=keys)


def recording_part(
    runtime: Hosted, daemon: DaemonProcess, request: bytes, *, masked: bool, limit: int
) -> bytes:
    """Return a part of the recording of a key; the request is the key and the part's number."""
    key, part = _request(request)
    recording = runtime.recording(key, masked=masked)
    if recording is None:
        raise NotFoundError(
            f"{runtime.name} has no recording of {key}: no sync of it has failed in this process, "
            "or newer recordings have replaced it; natsctl replay --record records every sync"
        )
    text = recording.to_json().decode()
    size = limit // SHARE
    parts = -(-len(text) // size)
    answer = RecordingPart(
        daemon=daemon,
        started=recording.started.isoformat(),
        part=part,
        parts=parts,
        text=text[part * size : (part + 1) * size],
    )
    return msgspec.json.encode(answer)


def _recordings(runtime: Hosted) -> Recordings:
    if runtime.recordings is None:
        raise UsageError(f"{runtime.name} keeps no recordings")
    return runtime.recordings


def _request(request: bytes) -> tuple[str, int]:
    try:
        key, _, part = request.decode().strip().partition(" ")
    except UnicodeDecodeError as error:
        raise UsageError("send a key as UTF-8 text") from error
    if part and not part.isdecimal():
        raise UsageError("send one key as plain text, and perhaps the number of a part")
    return check_key(key), int(part or 0)
