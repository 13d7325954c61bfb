"""Reads and writes pauses: the annotation of a paused object, and the record of other pauses.

The text of a pause is a line such as
`since=2026-11-22T09:00:00Z until=2026-11-22T11:00:00Z by=ann@desk reason=waits for the new disk`.
Each part is optional, and the reason is the rest of the line. Any other text is a pause whose
reason is the text, so that a mistake never resumes anything. Only `false` and an empty text are no
pause.
"""

import re
from datetime import datetime

import msgspec

from natsctl.errors import DECODE_ERRORS
from natsctl.model.objects import PAUSED, head
from natsctl.model.times import time_in

MARK = PAUSED[PAUSED.index("/") :].encode()
"""A value without these bytes has no such annotation; the search is cheaper than to decode it."""

NO_PAUSE = "false"
TEXT_MAX = 1000  # characters of a reason that are kept

_PART = re.compile(r"(since|until|by)=(\S*)(?:\s+|$)|(reason)=(.*)", re.DOTALL)


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of an object or a controller. Each text may be empty, and times are RFC 3339."""

    reason: str = ""  # for people
    since: str = ""
    until: str = ""  # empty if it lasts until somebody removes it
    by: str = ""  # the user that set it

    def __str__(self) -> str:
        """Return the pause as a phrase, such as `since … until … by ann: waits for a disk`."""
        parts = (("since", self.since), ("until", self.until), ("by", self.by))
        phrase = " ".join(f"{word} {text}" for word, text in parts if text)
        return ": ".join(filter(None, (phrase, self.reason))) or "without a reason"

    @property
    def ends(self) -> datetime | None:
        """When it ends; None if it lasts until somebody removes it."""
        return time_in(self.until)

    @property
    def text(self) -> str:
        """The text of the pause, as the annotation has it."""
        parts = {"since": self.since, "until": self.until, "by": self.by, "reason": self.reason}
        return " ".join(f"{name}={text}" for name, text in parts.items() if text) or "true"


def parse_pause(text: str) -> Pause | None:
    """Return the pause in a text, None if the text is empty or `false`."""
    text = text.strip()
    if text.lower() in {"", NO_PAUSE}:
        return None
    if text.lower() == "true":
        return Pause()
    parts: dict[str, str] = {}
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            return Pause(reason=text[:TEXT_MAX])
        parts[part[1] or part[3]] = (part[2] or part[4] or "")[:TEXT_MAX]
        position = part.end()
    if parts.get("until") and time_in(parts["until"]) is None:
        return Pause(reason=text[:TEXT_MAX])
    return Pause(**parts)


def pause_in(value: bytes) -> Pause | None:
    """Return the pause in the annotation of an object, None if the object has none."""
    if MARK not in value:
        return None
    try:
        text = head.decode(value).metadata.annotations.get(PAUSED)
    except DECODE_ERRORS:
        return None
    return None if text is None else parse_pause(text)


def active_pause(text: str | None, now: datetime) -> Pause | None:
    """Return the pause in a text, None if there is no text, or if the pause has ended by *now*."""
    pause = None if text is None else parse_pause(text)
    return None if pause is None or (pause.ends is not None and pause.ends <= now) else pause
