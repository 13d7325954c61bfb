"""How the answer of a micro service says that it is a failure, and which.

Source: the headers of the micro protocol, ADR-32 of nats-architecture-and-design; the codes are
HTTP's.
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


def refusal(error: NatsctlError) -> dict[str, str]:
    """Return the headers of an answer that tells *error*, on one line."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
    return {ERROR: " ".join(hidden(str(error)).split()), ERROR_CODE: code}


def refused(headers: Mapping[str, str] | None) -> NatsctlError | None:
    """Return the error that an answer with these headers tells; None where it is a result."""
    if not headers or ERROR_CODE not in headers:
        return None
    code = headers[ERROR_CODE]
    kind = next((kind for kind, known in _CODES if known == code), NatsctlError)
    return kind(headers.get(ERROR) or f"it failed with code {code}")
