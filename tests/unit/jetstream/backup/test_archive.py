"""A backup file keeps every value, and a damaged file is rejected."""

import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl.errors import UsageError
from natsctl.jetstream.backup.archive import (
    VERSION,
    ArchiveEntry,
    ArchiveWriter,
    Header,
    contents,
    entries,
)

HEADER = Header(natsctl_backup=VERSION, bucket="shops", created="", options={"max_age": 5})


def entry(key: str, revision: int, value: bytes = b"x", ttl: str = "") -> ArchiveEntry:
    return ArchiveEntry.of(key, revision, value, written="", ttl=ttl)


def archive(*stored: ArchiveEntry) -> bytes:
    file = io.BytesIO()
    writer = ArchiveWriter(file, HEADER)
    for stored_entry in stored:
        writer.add(stored_entry)
    writer.finish()
    return file.getvalue()


def restored(data: bytes) -> dict[str, bytes]:
    trailer = contents(io.BytesIO(data)).trailer
    stored = list(entries(io.BytesIO(data), trailer))
    assert len(stored) == trailer.keys
    return {stored_entry.key: stored_entry.value for stored_entry in stored}


@given(st.dictionaries(st.text(min_size=1), st.binary()))
def test_a_restored_value_has_the_same_bytes(values: dict[str, bytes]) -> None:
    data = archive(*(entry(k, n, value) for n, (k, value) in enumerate(values.items(), 1)))
    assert restored(data) == values


def test_the_header_keeps_the_bucket_and_its_options() -> None:
    assert contents(io.BytesIO(archive())).header == HEADER


def test_a_value_keeps_its_own_time_to_live() -> None:
    data = archive(entry("a", 1, ttl="60s"))
    [stored] = entries(io.BytesIO(data), contents(io.BytesIO(data)).trailer)
    assert stored.ttl == "60s"


def test_a_key_that_changed_during_the_backup_has_its_last_value() -> None:
    data = archive(entry("a", 1, b"old"), entry("b", 2), entry("a", 3, b"new"))
    assert restored(data) == {"a": b"new", "b": b"x"}


def test_a_key_that_was_deleted_during_the_backup_is_omitted() -> None:
    file = io.BytesIO()
    writer = ArchiveWriter(file, HEADER)
    writer.add(entry("a", 1))
    writer.add(entry("b", 2))
    writer.remove("a")
    writer.remove("never there")
    assert writer.finish() == 1
    assert restored(file.getvalue()) == {"b": b"x"}


def test_a_key_that_was_recreated_during_the_backup_is_kept() -> None:
    file = io.BytesIO()
    writer = ArchiveWriter(file, HEADER)
    writer.add(entry("a", 1))
    writer.remove("a")
    writer.add(entry("a", 3, b"again"))
    assert writer.finish() == 1
    assert restored(file.getvalue()) == {"a": b"again"}


def test_a_restart_discards_earlier_entries() -> None:
    file = io.BytesIO()
    writer = ArchiveWriter(file, HEADER)
    writer.add(entry("purged", 1))
    writer.add(entry("a", 2, b"old"))
    writer.restart()
    writer.add(entry("a", 2, b"old"))
    writer.finish()
    assert restored(file.getvalue()) == {"a": b"old"}


DATA = archive(entry("a", 1, b"some text"), entry("b", 2, b"\xff\x00"))


@pytest.mark.parametrize("size", range(len(DATA) - 1))
def test_a_truncated_file_is_rejected(size: int) -> None:
    with pytest.raises(UsageError):
        contents(io.BytesIO(DATA[:size]))


@given(st.integers(0, DATA.rindex(b"\n", 0, -1)), st.integers(1, 255))
def test_a_file_with_a_changed_byte_is_rejected(position: int, change: int) -> None:
    damaged = bytearray(DATA)
    damaged[position] ^= change
    with pytest.raises(UsageError):
        contents(io.BytesIO(bytes(damaged)))


def test_a_truncated_compressed_file_is_rejected() -> None:
    packed = gzip.compress(DATA)
    with pytest.raises(UsageError, match="cut off"):
        contents(gzip.GzipFile(fileobj=io.BytesIO(packed[:-20])))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"text", b"{}\n", b"[" * 100_000, b'{"bucket": "b"}\n{}\n'])
def test_a_file_that_is_no_backup_is_rejected(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"it is not a file of natsctl backup|the file is empty"):
        contents(io.BytesIO(data))


def test_a_later_version_of_the_format_is_rejected() -> None:
    later = DATA.replace(b'"natsctl_backup":1', b'"natsctl_backup":2', 1)
    with pytest.raises(UsageError, match="it has version 2 of the format"):
        contents(io.BytesIO(later))
