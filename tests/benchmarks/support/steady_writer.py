"""Changes a bucket at a steady rate: of ten writes, six update, two create and two delete.

    python -m tests.benchmarks.support.steady_writer URL LIVE RATE SECONDS

keeps LIVE keys in the bucket and replaces them in turns. A bucket keeps a delete marker for each
deleted name, so the writer uses at most three times LIVE names. It makes RATE writes per second if
the server accepts them, and prints the number of writes.
"""

import random
import sys
import time
from collections.abc import Iterator

from tests.benchmarks.support.bulk_writer import Writer
from tests.benchmarks.support.dataset import key, value

TICK_S = 0.02
SEED = 7


def changes(live: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield endless writes: a key and its value, or None to delete the key."""
    first, last, version, names = 0, live, 1, 3 * live
    chosen = random.Random(SEED)
    while True:
        version += 1
        for _ in range(6):
            number = chosen.randrange(first, last) % names
            yield key(number), value(number, version)
        for _ in range(2):
            yield key(last % names), value(last % names, version)
            yield key(first % names), None
            first, last = first + 1, last + 1


def write_steadily(url: str, live: int, rate: int, seconds: float) -> int:
    """Write for `seconds`, and return the number of acknowledged writes."""
    writer, written = Writer(url), 0
    writes = changes(live)
    started = time.monotonic()
    while (passed_s := time.monotonic() - started) < seconds:
        due = int(passed_s * rate) - written
        if due > 0:
            written += writer.change(next(writes) for _ in range(due))
        time.sleep(TICK_S)
    writer.close()
    return written


if __name__ == "__main__":
    print(write_steadily(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
