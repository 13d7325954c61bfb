"""Turns an answer of the JetStream API into a result or into one of natsctl's errors."""

from typing import Any

import msgspec

from natsctl.errors import (
    DECODE_ERRORS,
    ConflictError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
)

_KINDS: dict[int, type[StoreError]] = {
    10008: StoreTimeoutError,  # a server without a leader of JetStream; most of them do not answer
    10014: NotFoundError,  # consumer
    10037: NotFoundError,  # message
    10054: TooLargeError,
    10059: StoreMissingError,
    10071: ConflictError,  # wrong last sequence
    10164: ConflictError,  # the same, without the sequence that is stored
}
_DISABLED = (10039, 10076)


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = "no reason given"


class _Answer(msgspec.Struct, frozen=True):
    error: _Refusal | None = None


_answers = msgspec.json.Decoder(_Answer)
_results = msgspec.json.Decoder(dict[str, Any])


def result(data: bytes, about: str) -> dict[str, Any]:
    """Return the JSON object of an answer; *about* names the request in errors.

    Raises `StoreMissingError` (no such stream), `NotFoundError` (no such message or consumer),
    `ConflictError` (wrong last sequence), `TooLargeError`, `StoreTimeoutError` (JetStream has no
    leader), or `StoreError` with the server's description and error code.
    """
    try:
        refusal = _answers.decode(data).error
        if refusal is None:
            return _results.decode(data)
    except DECODE_ERRORS as error:
        raise StoreError(f"{about}: the answer is not a JSON object") from error
    raise _refused(refusal, about)


def revision(data: bytes) -> int:
    """Return the sequence at which a stream stored a message; raises the errors of `result`."""
    answer = result(data, "publish")
    sequence = answer.get("seq")
    if not isinstance(sequence, int):
        raise StoreError("publish: the answer is not an acknowledgement of a stream")
    return sequence


def _refused(refusal: _Refusal, about: str) -> StoreError:
    kind = _KINDS.get(refusal.err_code, StoreError)
    advice = ""
    if refusal.err_code in _DISABLED:
        advice = "; start the server with -js, and give the account JetStream"
    return kind(f"{about}: {refusal.description} ({refusal.err_code or refusal.code}){advice}")
