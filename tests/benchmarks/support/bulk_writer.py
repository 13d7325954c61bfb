"""Writes to a bucket over a bare socket, faster than any NATS client reads.

    python -m tests.benchmarks.support.bulk_writer URL COUNT VERSION ROUNDS RATE BURST FIRST

updates COUNT keys, from number FIRST, ROUNDS times each, the last time to VERSION, as fast as
possible if RATE is 0. Otherwise it updates each key once, RATE per second in bursts of BURST, and
prints when each update was sent.
"""

import socket
import sys
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from tests.benchmarks.support.dataset import BUCKET, key, value

WINDOW = 4096  # unacknowledged writes, fewer than the server queues
BATCH = 256


class Writer:
    """One connection that only publishes; every write is acknowledged before `close` returns."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""
        self._open = 0
        self._socket.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB acks 1\r\n'
        )

    def put_all(self, items: Iterable[tuple[str, bytes]], bucket: str = BUCKET) -> None:
        """Write as fast as the server acknowledges."""
        frames: list[bytes] = []
        for name, content in items:
            frames.append(_frame(name, content, bucket))
            if len(frames) == BATCH:
                self._send(frames)
                self._take_acks(WINDOW - BATCH)
                frames = []
        self._send(frames)

    def put(self, name: str, content: bytes) -> float:
        """Write one value, and return the monotonic time before it was sent."""
        frame = _frame(name, content)
        sent = time.monotonic()
        self._send([frame])
        return sent

    def close(self) -> None:
        self._take_acks(0)
        self._socket.close()

    def _send(self, frames: list[bytes]) -> None:
        self._open += len(frames)
        self._socket.sendall(b"".join(frames))

    def _take_acks(self, open_max: int) -> None:
        while self._open > open_max:
            received = self._tail + self._socket.recv(1 << 16)
            assert received != self._tail, "the server closed the connection"
            assert b"error" not in received, received
            whole_lines, _, self._tail = received.rpartition(b"\n")
            self._open -= whole_lines.count(b'"seq"')
            if b"PING" in whole_lines:
                self._socket.sendall(b"PONG\r\n")


def _frame(name: str, content: bytes, bucket: str = BUCKET) -> bytes:
    return f"PUB $KV.{bucket}.{name} acks {len(content)}\r\n".encode() + content + b"\r\n"


def fill(url: str, count: int, *, version: int = 0, rounds: int = 1, first: int = 0) -> None:
    """Write *count* keys from number *first* in each round; the last round writes *version*."""
    numbers = range(first, first + count)
    writer = Writer(url)
    for written in range(version - rounds + 1, version + 1):
        writer.put_all((key(number), value(number, written)) for number in numbers)
    writer.close()


def paced(
    url: str, count: int, version: int, rate: int, *, burst: int = 1, first: int = 0
) -> dict[str, float]:
    """Update *count* keys, *rate* per second in bursts; return when each update was sent."""
    writer = Writer(url)
    numbers = range(first, first + count)
    frames = [(key(number), value(number, version)) for number in numbers]
    sent: dict[str, float] = {}
    started = time.monotonic()
    for number, (name, content) in enumerate(frames):
        wait_s = started + number / rate - time.monotonic()
        if number % burst == 0 and wait_s > 0:
            time.sleep(wait_s)
        sent[name] = writer.put(name, content)
    writer.close()
    return sent


def main(url: str, *numbers: int) -> None:
    count, version, rounds, rate, burst, first = numbers
    sent: dict[str, float] = {}
    if rate:
        sent = paced(url, count, version, rate, burst=burst, first=first)
    else:
        fill(url, count, version=version, rounds=rounds, first=first)
    sys.stdout.buffer.write(msgspec.json.encode(sent))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
