"""`LineSplitter` returns whole lines from a stream of arbitrary pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl.errors import WatchBrokenError
from natsctl.kubernetes.transport import LineSplitter


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)), st.data())
def test_the_lines_do_not_depend_on_the_pieces(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunks = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]
    split = LineSplitter(line_max_bytes=1000)
    assert [line for chunk in chunks for line in split.feed(chunk)] == lines
    split.end()


def test_empty_lines_are_skipped() -> None:
    assert LineSplitter(line_max_bytes=10).feed(b"\n\na\n\n") == [b"a"]


def test_a_stream_that_ends_within_a_line_is_broken() -> None:
    split = LineSplitter(line_max_bytes=10)
    assert split.feed(b"a\nb") == [b"a"]
    with pytest.raises(WatchBrokenError, match="middle of a line"):
        split.end()


def test_a_line_above_the_limit_breaks_the_watch() -> None:
    split = LineSplitter(line_max_bytes=10)
    assert split.feed(b"x" * 10) == []
    with pytest.raises(WatchBrokenError, match="longer than 10 bytes"):
        split.feed(b"x")
