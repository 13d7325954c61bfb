"""Logs the warnings that a kube-apiserver sends beside its answers, as kubectl prints them.

Source: https://kubernetes.io/blog/2020/09/03/warnings/ and RFC 7234, section 5.5.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable

log = logging.getLogger(__name__)

TEXT_MAX = 1000  # characters of a warning
REMEMBERED_MAX = 500  # texts, the newest; one that was forgotten is logged again

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class ServerWarnings:
    """Logs each text once."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def log(self, headers: Iterable[str]) -> None:
        """Log the texts of an answer's `Warning` headers that were not logged yet."""
        for text in texts(headers):
            if text not in self._logged:
                log.warning("Warning: %s", text)
            self._logged[text] = None
            self._logged.move_to_end(text)
            if len(self._logged) > REMEMBERED_MAX:
                self._logged.popitem(last=False)


def texts(headers: Iterable[str]) -> list[str]:
    """Return the texts in `Warning` headers, each on one line; a malformed header has none."""
    quoted = (match[1] for header in headers for match in _WARNING.finditer(header))
    lines = (" ".join(_ESCAPED.sub(r"\1", text).split()) for text in quoted)
    return [line[:TEXT_MAX] for line in lines if line]
