"""Combines the answers of several daemons to one request to sync keys."""

from collections.abc import Iterator, Sequence

import msgspec

from natsctl.daemon.api.messages import Queuing


class Unqueued(msgspec.Struct, frozen=True):
    """The requested keys that no daemon enqueued.

    Attributes:
        unknown: keys without an object.
        moving: keys that move from one daemon to another.
        invalid: the reason, by key, for each invalid primary.
        paused: the pause, by key, of each paused key.
        source: the bucket of the keys, or their kind in a cluster.
    """

    unknown: frozenset[str]
    moving: frozenset[str]
    invalid: dict[str, str]
    paused: dict[str, str]
    source: str = ""

    @classmethod
    def of(cls, answers: Sequence[Queuing]) -> "Unqueued":
        """Return the keys that none of the daemons enqueued."""
        return cls(
            unknown=frozenset(answers[0].unknown).intersection(
                *(answer.unknown for answer in answers)
            ),
            moving=frozenset(answers[0].elsewhere).intersection(
                *(answer.elsewhere for answer in answers)
            ),
            invalid={key: reason for answer in answers for key, reason in answer.invalid.items()},
            paused={key: pause for answer in answers for key, pause in answer.paused.items()},
            source=next((answer.source for answer in answers if answer.source), ""),
        )

    @property
    def retryable(self) -> bool:
        """True if a key has an object, and may be enqueued later."""
        return bool(self.invalid or self.moving or self.paused)

    def reasons(self) -> Iterator[str]:
        """Yield the reason for each key."""
        prefix = f"{self.source}/" if self.source else ""
        for key in sorted(self.unknown):
            yield f"{prefix}{key} does not exist"
        for key, reason in sorted(self.invalid.items()):
            yield f"{prefix}{key}: {reason}"
        for key, pause in sorted(self.paused.items()):
            yield f"{prefix}{key} is paused {pause}: natsctl resume {prefix}{key}"
        for key in sorted(self.moving):
            yield f"{prefix}{key} is moving from one daemon to another: try again"
