"""An error in a response of a service becomes the same error for the client."""

import pytest

from natsctl import errors
from natsctl.errors import NatsctlError, NotFoundError
from natsctl.jetstream.service import ERROR, ERROR_CODE, error_from, error_headers


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (errors.UsageError("x"), "400", errors.UsageError),
        (errors.NotStartedError("x"), "400", errors.UsageError),
        (errors.PermissionDeniedError("x"), "403", errors.PermissionDeniedError),
        (NotFoundError("x", deleted_at=5), "404", NotFoundError),
        (errors.ExistsError("x"), "409", errors.ConflictError),
        (errors.TooLargeError("x"), "413", errors.TooLargeError),
        (errors.StoreTimeoutError("x"), "504", errors.StoreTimeoutError),
        (errors.StoppedError("x"), "500", NatsctlError),
    ],
)
def test_an_error_is_decoded_from_its_headers(
    error: NatsctlError, code: str, kind: type[NatsctlError]
) -> None:
    headers = error_headers(error)
    assert headers == {ERROR: "x", ERROR_CODE: code}
    decoded = error_from(headers)
    assert type(decoded) is kind
    assert str(decoded) == "x"


def test_a_message_of_several_lines_becomes_one_line() -> None:
    assert error_headers(NatsctlError("a\r\nb\n  c"))[ERROR] == "a b c"


@pytest.mark.parametrize("headers", [None, {}, {"Other": "1"}])
def test_a_response_without_error_headers_is_no_error(headers: dict[str, str] | None) -> None:
    assert error_from(headers) is None


def test_an_unknown_code_is_an_error() -> None:
    decoded = error_from({ERROR_CODE: "418"})
    assert type(decoded) is NatsctlError
    assert "418" in str(decoded)
