"""Reads and writes JSON without rounding numbers.

A JSON number may have any size and precision, but a Python float has 64 bits. A number that a float
would write differently keeps its text.
"""

from decimal import Decimal, InvalidOperation
from typing import Self

import msgspec


class ExactNumber(float):
    """A float that keeps the text of a number with more precision."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __eq__(self, other: object) -> bool:
        """Return whether the other is exactly the same number; a float equals its repr."""
        if isinstance(other, ExactNumber):
            text = other.text
        elif isinstance(other, int | float):
            text = repr(other)
        else:
            return NotImplemented
        try:
            return self.text == text or Decimal(self.text) == Decimal(text)
        except InvalidOperation:  # the exponent is too large for a Decimal
            return False

    def __hash__(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> tuple[type["ExactNumber"], tuple[str]]:
        return ExactNumber, (self.text,)


def number(text: str) -> float:
    """Return the number of a JSON or YAML float, as `ExactNumber` if a float would change it."""
    rounded = float(text)
    return rounded if repr(rounded) == text else ExactNumber(text)


def rounds_to(exact: object, rounded: object) -> bool:
    """Return whether *rounded* is the float nearest to the exact number."""
    if not isinstance(exact, ExactNumber) or type(rounded) is not float:
        return False
    return float.__eq__(exact, rounded)


def _encode_exact(value: object) -> msgspec.Raw:
    if isinstance(value, ExactNumber):
        return msgspec.Raw(value.text.encode())
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


# these raise as `msgspec.json.decode` and `encode` do
_decoder = msgspec.json.Decoder(object, float_hook=number)
decode, decode_lines = _decoder.decode, _decoder.decode_lines
decode_object = msgspec.json.Decoder(dict[str, object], float_hook=number).decode
encode = msgspec.json.Encoder(enc_hook=_encode_exact).encode
encode_sorted = msgspec.json.Encoder(enc_hook=_encode_exact, order="deterministic").encode
"""Encodes with sorted fields."""
