"""Masks secrets in values, and in the texts that may quote them.

Masked are the data of Kubernetes Secrets, the values of fields whose names are those of secrets,
and texts that look like one. A secret that was masked in a value is masked in every other text too.
"""

import base64
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json
from natsctl.telemetry.hiding import MASK, SECRET_NAME, Hider

_NOT_SECRET = re.compile(r"secret_?(name|ref|key_?ref)s?$|token_?(name|ref)$", re.IGNORECASE)
_MAY_HAVE = re.compile(SECRET_NAME.encode() + rb'|"kind": ?"Secret"', re.IGNORECASE)
_NAME = re.compile(SECRET_NAME, re.IGNORECASE)
_DATA = {"data": base64.b64encode(MASK.encode()).decode(), "stringData": MASK}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SHORT = 4  # a shorter text isn't searched for elsewhere
BYTES_MAX = 4_000_000  # of values that are searched for secrets
SECRET = "Secret", "v1"


def secrets_in(values: Iterable[bytes]) -> frozenset[str]:
    """Return the secrets in JSON values; searches the first `BYTES_MAX` bytes of them."""
    masker, left = Masker(), BYTES_MAX
    for value in values:
        left -= len(value)
        if left < 0:
            break
        if _MAY_HAVE.search(value):
            with suppress(*DECODE_ERRORS):
                masker.learn(exact_json.decode(value), place="")
    return frozenset(masker.secrets)


def masked_text(text: str, values: Iterable[bytes]) -> str:
    """Return a text that may quote JSON values, without the secrets in them."""
    secrets = secrets_in(values)
    return Hider(secrets)(text, limit=len(text)) if secrets else text


def masked_manifest(kind: str, value: bytes) -> str:
    """Return an object as indented JSON, without secrets and without `managedFields`."""
    document = exact_json.decode(value)
    if isinstance(document, dict) and isinstance(document.get("metadata"), dict):
        document["metadata"].pop("managedFields", None)
    masked = exact_json.encode(masked_value(document, place=kind))
    return msgspec.json.format(masked, indent=2).decode()


def masked_value(value: Any, *, place: str = "") -> Any:
    """Return a JSON value of an object in *place* without secrets."""
    masker = Masker()
    masker.learn(value, place=place)
    masker.learned()
    return masker.masked(value, place=place)


class Masker:
    """Masks the secrets of one recording. First `learn` every value, then mask each."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self._hide = Hider()

    def learn(self, value: Any, *, place: str) -> None:
        """Note the secrets in a value of an object in *place*."""
        self._walk(value, secret_kind=is_secret(place, value))

    def masked(self, value: Any, *, place: str) -> Any:
        return with_texts(self._walk(value, secret_kind=is_secret(place, value)), self.text)

    def learned(self) -> None:
        """Mask the secrets that are known now, in every later text."""
        self._hide = Hider(self.secrets)

    def text(self, text: str) -> str:
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
        if isinstance(value, str) and _NAME.search(name) and not _NOT_SECRET.search(name):
            return self._mask(value, MASK)
        return self._walk(value, secret_kind=secret_kind)

    def _mask(self, value: Any, mask: str) -> Any:
        def masked(text: str) -> str:
            self.secrets.update(each for each in (text, _decoded(text)) if len(each) >= _SHORT)
            return mask

        return with_texts(value, masked)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text changed; the names of fields stay."""
    match value:
        case str():
            return change(value)
        case dict():
            return {name: with_texts(inner, change) for name, inner in value.items()}
        case list():
            return [with_texts(inner, change) for inner in value]
        case _:
            return value


def is_secret(place: str, value: object = None) -> bool:
    """Return whether a place holds Kubernetes Secrets, or a value is one."""
    if place == "kube/v1/Secret":
        return True
    return isinstance(value, dict) and (value.get("kind"), value.get("apiVersion")) == SECRET


def _decoded(text: str) -> str:
    """Return the text that a value of a Secret stands for; empty if it isn't in base64."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""
