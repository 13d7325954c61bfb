"""The objects in the bucket that every benchmark watches."""

import msgspec

from natsctl import Object, kv

BUCKET = "bench"
VALUE_BYTES = 352


class Spec(msgspec.Struct, frozen=True):
    subject: str
    replicas: int
    text: str


class Item(Object, frozen=True):
    spec: Spec


ITEMS = kv(Item, bucket=BUCKET, history=1)
OWNED = kv(Item, bucket="owned", history=1)


def key(number: int) -> str:
    return f"team-{number % 97}.shop-{number}"


def value(number: int, version: int = 0) -> bytes:
    """Return `VALUE_BYTES` of JSON; another version has another spec."""
    name = f"shop-{number}"
    document = {
        "metadata": {"labels": {"app": name}, "generation": 1 + version, "uid": f"{number:036}"},
        "spec": {"subject": f"hello.{name}", "replicas": version, "text": ""},
        "status": {"ready": True},
    }
    padding = VALUE_BYTES - len(msgspec.json.encode(document))
    document["spec"]["text"] = "x" * padding  # type: ignore[index]
    return msgspec.json.encode(document)


def owned_value(number: int) -> bytes:
    """Return an object that the key of this number owns."""
    owner = {"natsctl.io/owner-kind": ITEMS.name, "natsctl.io/owner-key": key(number)}
    document = {
        "metadata": {"labels": owner, "annotations": owner, "uid": f"{number:036}"},
        "spec": {"subject": f"hello.{number}", "replicas": 1, "text": ""},
    }
    return msgspec.json.encode(document)
