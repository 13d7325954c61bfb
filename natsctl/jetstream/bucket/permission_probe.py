"""What a NATS user may do, found out without doing it.

A server says of what is forbidden that it is, and of anything else something else. So each probe
is a request that changes nothing even where it is allowed.
"""

from typing import Final

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.jetstream.bucket.bucket import ANSWER_S, Bucket
from natsctl.jetstream.bucket.codec import EXPECTED
from natsctl.jetstream.connection.connection import Connection

PROBE: Final = "natsctl-doctor"  # a key, a consumer, a token: nobody else's
NEVER: Final = str(2**62)  # the revision of nothing
BROKEN: Final = b"{"  # no JSON: what it asks for is refused, whatever that is


class Probe:
    """Finds out what may be published and heard, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._api = connection.api_prefix

    async def looking(self, bucket: Bucket) -> list[str]:
        """Return the subject that whoever reads single keys needs, where it may not be used."""
        return await self._denied(f"{self._api}.STREAM.MSG.GET.{bucket.stream}")

    async def reading(self, bucket: Bucket, keys: str) -> list[str]:
        """Return the subjects that whoever reads and watches these keys needs and may not use."""
        return await self.looking(bucket) + await self._denied(
            f"{self._api}.CONSUMER.CREATE.{bucket.stream}.{PROBE}.{bucket.prefix}{keys}",
            f"{self._api}.CONSUMER.DELETE.{bucket.stream}.{PROBE}",
            f"$JS.FC.{bucket.stream}.{PROBE}",
        )

    async def making(self, stream: str) -> list[str]:
        """Return the subject that whoever makes the stream needs, where it may not be used."""
        return await self._denied(f"{self._api}.STREAM.CREATE.{stream}")

    async def writing(self, subject: str) -> list[str]:
        """Return the subject, where it may not be written to."""
        return await self._denied(self._connection.publish_prefix + subject)

    async def asking(self, *subjects: str) -> list[str]:
        """Return those of the subjects on which this user may ask nothing."""
        return await self._denied(*subjects)

    async def hearing(self, *subjects: str) -> list[str]:
        """Return those of the subjects to which this user may not subscribe."""
        return [each for each in subjects if not await self._connection.may_subscribe(each)]

    async def _denied(self, *subjects: str) -> list[str]:
        return [subject for subject in subjects if not await self._allowed(subject)]

    async def _allowed(self, subject: str) -> bool:
        try:
            await self._connection.request(
                subject, BROKEN, headers={EXPECTED: NEVER}, timeout_s=ANSWER_S
            )
        except PermissionDeniedError:
            return False
        except StoreError:
            return True  # allowed, but nobody answers
        return True


def one_of(keys: str) -> str:
    """Return a key that matches the pattern, and that nobody has."""
    return ".".join(PROBE if token in {"*", ">"} else token for token in keys.split("."))
