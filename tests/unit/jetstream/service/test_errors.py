"""An error that a service answers with is the same error for whoever asked."""

import pytest

from natsctl import errors
from natsctl.errors import NatsctlError, NotFoundError
from natsctl.jetstream.service.errors import ERROR, ERROR_CODE, error_from, error_headers


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
def test_an_error_crosses_the_wire(
    error: NatsctlError, code: str, kind: type[NatsctlError]
) -> None:
    headers = error_headers(error)
    assert headers == {ERROR: "x", ERROR_CODE: code}
    found = error_from(headers)
    assert type(found) is kind
    assert str(found) == "x"


def test_a_text_of_several_lines_is_told_on_one() -> None:
    assert error_headers(NatsctlError("a\r\nb\n  c"))[ERROR] == "a b c"


@pytest.mark.parametrize("headers", [None, {}, {"Other": "1"}])
def test_an_answer_without_these_headers_is_a_result(headers: dict[str, str] | None) -> None:
    assert error_from(headers) is None


def test_a_code_that_nobody_knows_is_an_error_too() -> None:
    found = error_from({ERROR_CODE: "418"})
    assert type(found) is NatsctlError
    assert "418" in str(found)
