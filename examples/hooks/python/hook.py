"""Decides what each shop needs, with nothing of natsctl: a page for every copy that it wants.

pip install nats-py && python hook.py
natsctl run --hook shops.sync --primary shops --secondary pages
natsctl put shops corner '{"spec": {"copies": 2, "text": "hi"}}'
"""

import asyncio
import json
import os
from typing import Any

import nats
from nats.aio.msg import Msg


def decide(request: dict[str, Any]) -> dict[str, Any]:
    """Return the children and the status of a shop."""
    spec = request["object"]["spec"]
    copies, text = spec.get("copies", 1), spec.get("text", "hi")
    if copies > 100:  # noqa: PLR2004 - an example of a rule
        return {"error": f"{copies} copies are too many", "permanent": True}
    pages = {f"{request['key']}.{copy}": {"spec": {"text": text.upper()}} for copy in range(copies)}
    return {"children": {"pages": pages}, "status": {"ready": True, "pages": copies}}


async def answer(message: Msg) -> None:
    """Answer one request; an error makes natsctl retry the key."""
    try:
        decision = decide(json.loads(message.data))
    except Exception as error:  # noqa: BLE001 - natsctl shows it
        decision = {"error": repr(error)}
    await message.respond(json.dumps(decision).encode())


async def main() -> None:
    """Answer requests until the process is stopped."""
    client = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    await client.subscribe("shops.sync", queue="shops", cb=answer)
    await client.flush()
    print("deciding about shops", flush=True)  # noqa: T201 - for whoever started it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
