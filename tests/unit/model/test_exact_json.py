"""JSON numbers that a float cannot represent are read and written exactly."""

import pickle

import pytest

from natsctl.model import exact_json
from natsctl.model.documents import same

NUMBERS = [
    b"12345678901234567890.5",
    b"0.1000000000000000055511151231257827",
    b"1e400",
    b"-1E-400",
    b"123456789012345678901234567890",
    b"1.0",
    b"1",
    b"1.50",
    b"1e5",
    b"0.1",
    b"-0.0",
    b"1e99999999999999999999",
]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_written_as_it_was_read(text: bytes) -> None:
    value = b'{"deep":[' + text + b"]}"
    assert exact_json.encode(exact_json.decode(value)) == value


@pytest.mark.parametrize(
    ("encoded", "other_encoded", "equal"),
    [
        (b"12345678901234567890.5", b"12345678901234567890.6", False),
        (b"12345678901234567890.5", b"12345678901234567000.0", False),
        (b"1e400", b"1e401", False),
        (b"1e400", b"10e399", True),
        (b"0.10", b"0.1", True),
        (b"1E2", b"100", True),
        (b"1.0", b"1", True),
        (b"1e99999999999999999999", b"1", False),
    ],
)
def test_numbers_are_compared_exactly(encoded: bytes, other_encoded: bytes, equal: bool) -> None:  # noqa: FBT001 - a test parameter
    number, other_number = exact_json.decode(encoded), exact_json.decode(other_encoded)
    assert (number == other_number) is equal
    assert (other_number == number) is equal
    assert same([number], [other_number]) is equal
    if equal:
        assert hash(number) == hash(other_number)


def test_an_exact_number_survives_a_copy() -> None:
    number = exact_json.decode(b"12345678901234567890.5")
    assert exact_json.encode(pickle.loads(pickle.dumps(number))) == b"12345678901234567890.5"


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="objects of type object is unsupported"):
        exact_json.encode({"a": object()})
