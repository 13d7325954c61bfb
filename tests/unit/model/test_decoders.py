"""Kinds with a decoder and an encoder for values that are not JSON."""

import msgspec
import pytest

import natsctl
from natsctl.errors import InvalidObjectError, UsageError


class Reading(msgspec.Struct, frozen=True):
    celsius: float


def packed(**options: object) -> natsctl.KvKind[Reading]:
    decode = msgspec.msgpack.Decoder(Reading).decode
    return natsctl.kv(Reading, bucket="readings", decoder=decode, **options)  # type: ignore[arg-type]


def test_a_decoder_reads_values_and_an_encoder_writes_them() -> None:
    kind = packed(encoder=msgspec.msgpack.encode)
    assert kind.decode(msgspec.msgpack.encode(Reading(21.5))) == Reading(21.5)
    assert kind.decode(kind.encode(b"the former value", Reading(1.0))) == Reading(1.0)


def test_an_exception_in_the_decoder_makes_the_value_invalid() -> None:
    with pytest.raises(InvalidObjectError, match="not a valid Reading"):
        packed().decode(b'{"celsius": 1}')


def test_a_kind_without_an_encoder_is_read_only() -> None:
    with pytest.raises(UsageError, match="declare an encoder"):
        packed().encode(None, Reading(1.0))


def test_a_decoder_for_an_object_is_refused() -> None:
    class Thing(natsctl.Object):  # type: ignore[misc]
        spec: int

    with pytest.raises(UsageError, match="an Object is JSON"):
        natsctl.kv(Thing, bucket="things", decoder=lambda _: Thing(spec=1))
