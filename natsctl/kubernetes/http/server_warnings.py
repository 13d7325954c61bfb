"""Logs the warnings that a kube-apiserver sends with its responses, as kubectl prints them.

Source: https://kubernetes.io/blog/2020/09/03/warnings/ and RFC 7234, section 5.5.
"""

import re
from collections import OrderedDict

from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

TEXT_MAX = 1000  # characters of a warning
REMEMBERED_MAX = 500  # newest texts; a text that was dropped is logged again

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class ServerWarnings:
    """Logs each warning once."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def log(self, header: str) -> None:
        """Log the texts of a response's `Warning` headers that were not logged before."""
        for text in warning_texts(header):
            if text not in self._logged:
                log.warning("server sent a warning", warning=text)
            self._logged[text] = None
            self._logged.move_to_end(text)
            if len(self._logged) > REMEMBERED_MAX:
                self._logged.popitem(last=False)


def warning_texts(header: str) -> list[str]:
    """Return the texts in `Warning` headers, joined by commas, each on one line.

    Malformed ones are skipped.
    """
    quoted = (match[1] for match in _WARNING.finditer(header))
    lines = (" ".join(_ESCAPED.sub(r"\1", text).split()) for text in quoted)
    return [line[:TEXT_MAX] for line in lines if line]
