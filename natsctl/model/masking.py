"""Masks secrets in the values and texts of a recording.

Masked are the data of Kubernetes Secrets, the values of fields whose names are those of secrets,
and texts that look like one. A secret that was masked in a value is masked in every other text too.
"""

import base64
import re
from collections.abc import Callable
from typing import Any

from natsctl.telemetry.hiding import MASK, Hider

_NAME = re.compile(
    r"passw|secret|token|credential|api_?key|private_?key|access_?key|auth_?key", re.IGNORECASE
)
_NOT_SECRET = re.compile(r"secret_?(name|ref|key_?ref)s?$|token_?(name|ref)$", re.IGNORECASE)
_DATA = {"data": base64.b64encode(MASK.encode()).decode(), "stringData": MASK}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHORT = 4  # a shorter text is not searched for elsewhere


class Masker:
    """Masks the secrets of one recording. First `learn` every value, then mask each."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._hide = Hider()

    def learn(self, value: Any, *, place: str) -> None:
        """Note the secrets in a value of an object in *place*."""
        self._walk(value, secret_kind=is_secret(place))

    def masked(self, value: Any, *, place: str) -> Any:
        """Return the value without secrets."""
        return _with_texts(self._walk(value, secret_kind=is_secret(place)), self.text)

    def learned(self) -> None:
        """Mask the secrets that are known now, in every later text."""
        self._hide = Hider(self._secrets)

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        return self._hide(text, limit=len(text))

    def _walk(self, value: Any, *, secret_kind: bool) -> Any:
        if isinstance(value, list):
            return [self._walk(item, secret_kind=secret_kind) for item in value]
        if not isinstance(value, dict):
            return value
        return {
            name: self._field(name, inner, secret_kind=secret_kind) for name, inner in value.items()
        }

    def _field(self, name: str, value: Any, *, secret_kind: bool) -> Any:
        if secret_kind and name in _DATA:
            return self._mask(value, _DATA[name])
        if secret_kind and name == _LAST_APPLIED:
            return MASK
        if _NAME.search(name) and not _NOT_SECRET.search(name) and isinstance(value, str):
            return self._mask(value, MASK)
        return self._walk(value, secret_kind=secret_kind)

    def _mask(self, value: Any, mask: str) -> Any:
        def masked(text: str) -> str:
            if len(text) >= _SHORT:
                self._secrets.add(text)
            return mask

        return _with_texts(value, masked)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text changed, without the names of fields."""
    match value:
        case str():
            return change(value)
        case dict():
            return {name: _with_texts(inner, change) for name, inner in value.items()}
        case list():
            return [_with_texts(inner, change) for inner in value]
        case _:
            return value


def is_secret(place: str) -> bool:
    """Return whether a place holds Kubernetes Secrets."""
    return place == "kube/v1/Secret"
