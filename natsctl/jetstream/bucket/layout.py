"""Finds the keys of a bucket in its stream: under its own subjects, or those of its origin.

A mirror keeps the subjects of the stream that it mirrors. A stream that takes messages of other
streams keeps theirs too, unless it renames them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from natsctl.errors import StoreDiffersError
from natsctl.jetstream.bucket.codec import prefix_of, stream_of

_TOKENS = 2  # of a bucket's prefix: `$KV` and the bucket


class Layout(msgspec.Struct, frozen=True):
    """How a bucket keeps its keys.

    Attributes:
        prefix: what stands before each key in the stream's subjects.
        origin: the stream that this one mirrors; empty if it is no mirror.
        history: how many revisions the bucket keeps of each key; 0 or less keeps all.
        expiring: whether a single message may have a time to live.
        settled: whether *prefix* cannot change any more.
    """

    prefix: str
    origin: str = ""
    history: int = 0
    expiring: bool = False
    settled: bool = True


def layout_of(bucket: str, config: Mapping[str, Any]) -> Layout:
    """Return the layout that the stream's configuration gives.

    Raises `StoreDiffersError` if keys of the bucket have different subjects, so that some of them
    would be missing.
    """
    mirror = config.get("mirror") or {}
    history, expiring = config.get("max_msgs_per_subject", -1), bool(config.get("allow_msg_ttl"))
    if not mirror:
        own = prefix_of(bucket)
        for source in config.get("sources") or ():
            for prefix in _prefixes(source):
                if prefix != own:
                    raise StoreDiffersError(_mixed(bucket, source["name"], prefix))
        return Layout(own, "", history, expiring)
    prefixes = set(_prefixes(mirror))
    if len(prefixes) > 1:
        shown = " and ".join(sorted(prefixes))
        raise StoreDiffersError(
            f"bucket {bucket} mirrors {mirror['name']} under several subjects, {shown}: "
            "natsctl reads a bucket under one; mirror it without renaming subjects"
        )
    # the origin may be a mirror too, with the subjects of its own origin
    settled = bool(mirror.get("subject_transforms"))
    return Layout(prefixes.pop(), mirror["name"], history, expiring, settled)


def prefix_in(subject: str) -> str:
    """Return what stands before the key in this subject of a bucket."""
    return "".join(f"{token}." for token in subject.split(".")[:_TOKENS])


def bucket_in(stream: str) -> str:
    """Return the name of the bucket that this stream is, as people know it."""
    return stream.removeprefix("KV_")


def _prefixes(upstream: Mapping[str, Any]) -> Iterator[str]:
    """Return what stands before keys that come from this stream."""
    transforms = upstream.get("subject_transforms") or ()
    for transform in transforms:
        yield prefix_in(transform.get("dest") or transform.get("src") or "")
    if not transforms:
        yield prefix_of(bucket_in(upstream["name"]))


def _mixed(bucket: str, source: str, prefix: str) -> str:
    return (
        f"bucket {bucket} takes messages of {source} under {prefix}>, so its keys would be "
        f"missing: add a subject transform from {prefix}> to {prefix_of(bucket)}> to that source "
        f"with `nats stream edit {stream_of(bucket)}`, or declare bucket {bucket_in(source)}"
    )
