"""Commands print what the transcripts show: a file for each, with what is typed and printed."""

from pathlib import Path

import pytest

from tests.support.cli.doc_page import ports, steps
from tests.support.cli.doc_reader import Reader
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.md"))


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.stem)
async def test_a_transcript(transcript: Path, folder: Path, nats_server: NatsServer) -> None:
    free = {port: free_port() for port in ports(transcript)}
    async with Reader(folder, nats_server.url, free) as reader:
        for step in steps(transcript):
            await reader.run(step)
