"""A kind whose guard permits only dry runs sends every write as a dry run."""

from typing import Any

import msgspec
import pytest

from natsctl import kube
from natsctl.kubernetes.discovery import KindWire
from natsctl.kubernetes.transport import Reply
from natsctl.model.write_guard import DRY_RUN


class Sent:
    """A `Wire` that keeps the options of the last request."""

    options: dict[str, Any]

    async def call(self, _method: str, _path: str, **options: Any) -> Reply:
        self.options = options
        return Reply(200, b"{}")


def dry_wire(sent: Sent) -> KindWire:
    return KindWire(sent, None, kube("v1", "ConfigMap"), DRY_RUN)  # type: ignore[arg-type]  # no kind is looked up


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_a_write_has_the_dry_run_in_its_query(method: str) -> None:
    sent = Sent()
    await dry_wire(sent).call(method, "/x", query={"fieldManager": "m"}, body=b"{}")
    assert sent.options["query"] == {"fieldManager": "m", "dryRun": "All"}


async def test_a_deletion_has_the_dry_run_in_its_body() -> None:
    sent = Sent()
    await dry_wire(sent).call("DELETE", "/x", body=b'{"kind":"DeleteOptions"}')
    body = msgspec.json.decode(sent.options["body"])
    assert body == {"kind": "DeleteOptions", "dryRun": ["All"]}


async def test_a_read_is_sent_as_it_is() -> None:
    sent = Sent()
    await dry_wire(sent).call("GET", "/x")
    assert sent.options == {}
