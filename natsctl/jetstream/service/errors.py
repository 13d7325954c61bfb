"""The headers with which a micro service reports an error.

Source: the headers of the micro protocol, ADR-32 of nats-architecture-and-design. The codes are
those of HTTP.
"""

from collections.abc import Mapping
from typing import Final

from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoreMissingError,
    StoreTimeoutError,
    TooLargeError,
    TooManyRequestsError,
    UsageError,
)
from natsctl.telemetry.hiding import hidden

ERROR: Final = "Nats-Service-Error"
ERROR_CODE: Final = "Nats-Service-Error-Code"
FAILED: Final = "500"

_CODES: tuple[tuple[type[NatsctlError], str], ...] = (
    (UsageError, "400"),
    (InvalidKeyError, "400"),
    (PermissionDeniedError, "403"),
    (NotFoundError, "404"),
    (StoreMissingError, "404"),
    (ConflictError, "409"),
    (TooLargeError, "413"),
    (TooManyRequestsError, "429"),
    (StoreTimeoutError, "504"),
)


def error_headers(error: NatsctlError) -> dict[str, str]:
    """Return the headers that report *error*, its message on one line and without secrets."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
    return {ERROR: " ".join(hidden(str(error)).split()), ERROR_CODE: code}


def error_from(headers: Mapping[str, str] | None) -> NatsctlError | None:
    """Return the error that the headers of an answer report; None if the request succeeded."""
    if not headers or ERROR_CODE not in headers:
        return None
    code = headers[ERROR_CODE]
    kind = next((kind for kind, kind_code in _CODES if kind_code == code), NatsctlError)
    return kind(headers.get(ERROR) or f"the request failed with code {code}")
