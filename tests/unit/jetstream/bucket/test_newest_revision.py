"""The newest revision of a bucket is read without a search through all keys, if possible."""

from collections.abc import Mapping
from typing import Any

import pytest

from natsctl.errors import NotFoundError
from natsctl.jetstream.bucket import Bucket

Query = Mapping[str, Any]


class Leader:
    """A stream's leader with these subjects by sequence; it records the queries for messages."""

    def __init__(self, subjects: dict[int, str], last_seq: int) -> None:
        self.queries: list[Query] = []
        self._subjects = subjects
        self._last_seq = last_seq

    async def api(
        self, endpoint: str, query: Query | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        assert timeout_s
        if endpoint == "STREAM.INFO.KV_b":
            return {"created": "then", "config": {}, "state": {"last_seq": self._last_seq}}
        assert endpoint == "STREAM.MSG.GET.KV_b"
        assert query is not None
        self.queries.append(query)
        pattern = str(query.get("last_by_subj", ">")).removesuffix(">")
        matching = [seq for seq, subject in self._subjects.items() if subject.startswith(pattern)]
        seq = query.get("seq", max(matching, default=0))
        if seq not in self._subjects:
            raise NotFoundError("no message found")
        return {"message": {"subject": self._subjects[seq], "seq": seq}}


def bucket(leader: Leader) -> Bucket:
    return Bucket(leader, "b")  # type: ignore[arg-type]  # has the method that a read uses


async def test_the_last_message_of_the_stream_has_the_newest_revision() -> None:
    leader = Leader({1: "$KV.b.a", 2: "$KV.b.team.x"}, 2)
    assert await bucket(leader).newest_revision() == 2
    assert await bucket(leader).newest_revision(("team.>",)) == 2
    assert leader.queries == [{"seq": 2}] * 2


@pytest.mark.parametrize(
    ("subjects", "pattern"),
    [
        pytest.param({1: "$KV.b.team.x", 2: "$KV.b.a"}, "team.>", id="another part of the keys"),
        pytest.param({1: "$KV.b.x", 2: "other.x"}, ">", id="no key of the bucket"),
        pytest.param({1: "$KV.b.x"}, ">", id="deleted"),
    ],
)
async def test_the_leader_finds_the_newest_message_if_the_last_one_does_not_match(
    subjects: dict[int, str], pattern: str
) -> None:
    leader = Leader(subjects, 2)
    assert await bucket(leader).newest_revision((pattern,)) == 1
    assert leader.queries == [{"seq": 2}, {"last_by_subj": f"$KV.b.{pattern}"}]


async def test_a_bucket_whose_keys_have_all_vanished_has_no_newest_revision() -> None:
    assert await bucket(Leader({}, 2)).newest_revision() == 0


async def test_no_message_of_an_empty_bucket_is_read() -> None:
    leader = Leader({}, 0)
    assert await bucket(leader).newest_revision() == 0
    assert leader.queries == []
