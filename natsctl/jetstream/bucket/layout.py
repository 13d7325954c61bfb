"""Determines the subjects under which a stream keeps the keys of a bucket.

A mirror keeps the subjects of the stream that it mirrors. A stream with sources keeps the subjects
of its sources, unless a subject transform renames them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from natsctl.errors import StoreDiffersError
from natsctl.jetstream.bucket.codec import prefix_of, stream_of

_FUNCTION = re.compile(r"\{\{|\$\d")  # of a subject transform, such as {{partition(3,1)}} or $1
_TOKENS = 2  # in the prefix of a bucket: `$KV` and the bucket's name


class Layout(msgspec.Struct, frozen=True):
    """The layout of a bucket's stream.

    Attributes:
        prefix: the part of the stream's subjects that precedes each key.
        origin: the stream that this one mirrors; empty if the stream is not a mirror.
        history: the number of revisions per key; 0 or less keeps all.
        expiring: whether a single message may have a time to live.
        settled: whether *prefix* is final.
    """

    prefix: str
    origin: str = ""
    history: int = 0
    expiring: bool = False
    settled: bool = True


def layout_of(bucket: str, config: Mapping[str, Any]) -> Layout:
    """Return the layout of a stream with this configuration.

    Raises `StoreDiffersError` if the keys have several prefixes, because some would be missing, or
    if a function such as `partition` makes other keys of them.
    """
    mirror = config.get("mirror") or {}
    own = config.get("subject_transform") or {}
    for upstream in (mirror, *(config.get("sources") or ()), {"subject_transforms": [own]}):
        for transform in upstream.get("subject_transforms") or ():
            if _FUNCTION.search(transform.get("dest") or ""):
                raise StoreDiffersError(_function_error(bucket, transform["dest"]))
    history, expiring = config.get("max_msgs_per_subject", -1), bool(config.get("allow_msg_ttl"))
    if not mirror:
        own_prefix = prefix_of(bucket)
        for source in config.get("sources") or ():
            for prefix in _prefixes(source):
                if prefix != own_prefix:
                    raise StoreDiffersError(_mixed_error(bucket, source["name"], prefix))
        return Layout(own_prefix, "", history, expiring)
    prefixes = set(_prefixes(mirror))
    if len(prefixes) > 1:
        subjects = " and ".join(sorted(prefixes))
        raise StoreDiffersError(
            f"bucket {bucket} mirrors {mirror['name']} under several subjects, {subjects}: "
            "natsctl reads one subject prefix per bucket; mirror it without renaming subjects"
        )
    # the origin may be a mirror too, with the subjects of the stream that it mirrors
    settled = bool(mirror.get("subject_transforms"))
    return Layout(prefixes.pop(), mirror["name"], history, expiring, settled)


def prefix_in(subject: str) -> str:
    """Return the prefix in the subject of a key."""
    return "".join(f"{token}." for token in subject.split(".")[:_TOKENS])


def bucket_in(stream: str) -> str:
    """Return the name of the bucket that this stream holds."""
    return stream.removeprefix("KV_")


def _prefixes(upstream: Mapping[str, Any]) -> Iterator[str]:
    """Return the prefixes of the keys that come from *upstream*."""
    transforms = upstream.get("subject_transforms") or ()
    for transform in transforms:
        yield prefix_in(transform.get("dest") or transform.get("src") or "")
    if not transforms:
        yield prefix_of(bucket_in(upstream["name"]))


def _function_error(bucket: str, subject: str) -> str:
    return (
        f"bucket {bucket} renames its keys to {subject}, so they differ from those that were "
        "written: mirror it without functions, or read the bucket that it copies"
    )


def _mixed_error(bucket: str, source: str, prefix: str) -> str:
    return (
        f"bucket {bucket} takes messages of {source} under {prefix}>, so its keys would be "
        f"missing: add a subject transform from {prefix}> to {prefix_of(bucket)}> to that source "
        f"with `nats stream edit {stream_of(bucket)}`, or declare bucket {bucket_in(source)}"
    )
