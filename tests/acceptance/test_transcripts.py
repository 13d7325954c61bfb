"""Commands print what the transcripts show: a file for each, with what is typed and printed."""

from pathlib import Path

import pytest

from tests.support.cli.doc_page import steps
from tests.support.cli.doc_reader import Reader
from tests.support.servers.nats_server import NatsServer

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.md"))


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.stem)
async def test_a_transcript(transcript: Path, folder: Path, nats_server: NatsServer) -> None:
    async with Reader(folder, nats_server.url, {}) as reader:
        for step in steps(transcript):
            await reader.run(step)
