"""Finds out which NATS permissions a user lacks, without side effects.

Each probe sends a request that the server rejects as invalid if it is permitted, so the request
changes nothing. The server answers a denied request with a permission violation instead.
"""

from typing import Final

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.jetstream.bucket import EXPECTED, Bucket
from natsctl.jetstream.connection import Connection

PROBE: Final = "natsctl-doctor"  # a name for keys, consumers and tokens that nothing else uses
NEVER: Final = str(2**62)  # a revision that no key has
BROKEN: Final = b"{"  # invalid JSON, which every API endpoint rejects
ANSWER_S: Final = 2.0  # a violation comes at once; no answer counts as permitted


class Probe:
    """Probes the permissions of one connection's user.

    Every method returns the subjects that the user needs for an action and may not use.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._api = connection.options.prefix

    async def getting(self, bucket: Bucket) -> list[str]:
        return await self._denied(f"{self._api}.STREAM.MSG.GET.{bucket.stream}")

    async def watching(self, bucket: Bucket, keys: str) -> list[str]:
        create = f"{self._api}.CONSUMER.CREATE.{bucket.stream}.{PROBE}"
        several = " " in keys  # then the request names no subject
        return await self.getting(bucket) + await self._denied(
            create if several else f"{create}.{bucket.prefix}{keys}",
            f"{self._api}.CONSUMER.DELETE.{bucket.stream}.{PROBE}",
            f"$JS.FC.{bucket.stream}.{PROBE}",
        )

    async def creating(self, stream: str) -> list[str]:
        return await self._denied(f"{self._api}.STREAM.CREATE.{stream}")

    async def writing(self, subject: str) -> list[str]:
        options, of_bucket = self._connection.options, subject.startswith("$KV.")
        prefix = options.publish_prefix if of_bucket else options.stream_prefix
        return await self._denied(prefix + subject)

    async def requesting(self, *subjects: str) -> list[str]:
        return await self._denied(*subjects)

    async def subscribing(self, *subjects: str) -> list[str]:
        may_subscribe = self._connection.may_subscribe
        return [subject for subject in subjects if not await may_subscribe(subject)]

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
            return True  # allowed, but there is no answer
        return True


def unused_key(keys: str) -> str:
    """Return a key that matches the patterns *keys* and that no object has."""
    first = keys.split(maxsplit=1)[0]
    return ".".join(PROBE if token in {"*", ">"} else token for token in first.split("."))
