"""The configuration of a stream determines where the keys of a bucket are."""

from typing import Any

import pytest

from natsctl.errors import StoreDiffersError
from natsctl.jetstream.bucket import Layout, layout_of


def renamed(source: str, *prefixes: str) -> dict[str, Any]:
    """Return a stream whose subjects a transform moves to each of the prefixes."""
    transforms = [{"src": f"$KV.{source}.>", "dest": f"{prefix}>"} for prefix in prefixes]
    return {"name": f"KV_{source}", "subject_transforms": transforms}


def test_a_bucket_has_its_own_prefix() -> None:
    config = {"max_msgs_per_subject": 5, "allow_msg_ttl": True}
    assert layout_of("b", config) == Layout("$KV.b.", history=5, expiring=True)


def test_a_bucket_without_a_limit_keeps_all_revisions() -> None:
    assert layout_of("b", {}) == Layout("$KV.b.", history=-1)


def test_a_mirror_has_the_prefix_of_its_origin_until_a_message_shows_another_one() -> None:
    layout = layout_of("m", {"mirror": {"name": "KV_b"}})
    assert layout == Layout("$KV.b.", "KV_b", history=-1, settled=False)


def test_a_mirror_that_renames_subjects_has_the_new_prefix() -> None:
    layout = layout_of("m", {"mirror": renamed("b", "$KV.m.")})
    assert layout == Layout("$KV.m.", "KV_b", history=-1)


def test_a_mirror_that_selects_subjects_has_their_prefix() -> None:
    mirror = {"name": "KV_b", "subject_transforms": [{"src": "$KV.b.x.>", "dest": ""}]}
    assert layout_of("m", {"mirror": mirror}).prefix == "$KV.b."


def test_a_mirror_with_several_prefixes_is_refused() -> None:
    config = {"mirror": renamed("b", "$KV.y.", "$KV.x.")}
    with pytest.raises(StoreDiffersError, match=r"under several subjects, \$KV\.x\. and \$KV\.y\."):
        layout_of("m", config)


def test_a_source_with_another_prefix_is_refused() -> None:
    with pytest.raises(
        StoreDiffersError, match=r"bucket b takes messages of KV_a under \$KV\.a\.>"
    ):
        layout_of("b", {"sources": [renamed("c", "$KV.b."), {"name": "KV_a"}]})


def test_a_source_that_is_renamed_to_the_prefix_of_the_bucket_is_read() -> None:
    layout = layout_of("b", {"sources": [renamed("a", "$KV.b.")]})
    assert layout == Layout("$KV.b.", history=-1)
