"""Documents as other programs read and write them: with `json`, and without natsctl."""

import json
from typing import Any

from natsctl.errors import NotFoundError
from natsctl.model.store import Store, Stored

Document = dict[str, Any]


def parse(value: bytes) -> Document:
    document: Document = json.loads(value)
    return document


def render(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def metadata_of(document: Document) -> Document:
    metadata: Document = document["metadata"]
    return metadata


def merge_patch(document: Document, patch: Document) -> Document:
    """Apply a JSON merge patch (RFC 7396): a null in *patch* removes the field."""
    result = {
        name: old for name, old in document.items() if name not in patch or patch[name] is not None
    }
    for name, new in patch.items():
        if isinstance(new, dict):
            old = result.get(name)
            result[name] = merge_patch(old if isinstance(old, dict) else {}, new)
        elif new is not None:
            result[name] = new
    return result


async def put(store: Store, key: str, value: bytes | Document) -> Stored:
    body = value if isinstance(value, bytes) else render(value)
    try:
        revision = (await store.get(key)).revision
    except NotFoundError:
        return await store.create(key, body)
    return await store.update(key, body, revision=revision)


async def edit(store: Store, key: str, **changes: object) -> None:
    """Change an object as `kubectl edit` does: a null removes the field."""
    stored = await store.get(key)
    value = render(merge_patch(parse(stored.value), changes))
    await store.update(key, value, revision=stored.revision)


async def delete(store: Store, key: str) -> None:
    """Delete an object as `natsctl delete` does: one with finalizers is only marked."""
    stored = await store.get(key)
    metadata = parse(stored.value).get("metadata") or {}
    if not metadata.get("finalizers"):
        await store.delete(key, revision=stored.revision)
    elif not metadata.get("deletionTimestamp"):
        await edit(store, key, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
