"""Finds the schema that a command needs."""

from collections.abc import Iterable, Sequence

from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.daemon.published import published_schemas
from natsctl.daemon.schemas import schemas_of
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, UsageError
from natsctl.jetstream.connection import connect
from natsctl.jetstream.options import NatsOptions
from natsctl.model.schemas.kind_schema import KindSchema

KINDS_MAX = 10
"""Kinds that an error lists."""


async def known_schemas(options: NatsOptions, controllers: Sequence[str]) -> list[KindSchema]:
    """Return the schemas that the controllers at these paths declare; without any, the published.

    Raises as `load_runnable_controller` and `published_schemas` do.
    """
    if controllers:
        return schemas_of([load_runnable_controller(path) for path in controllers])
    async with connect(options) as connection:
        return await published_schemas(connection)


def schema_for(schemas: Iterable[KindSchema], key: str) -> KindSchema | None:
    """Return the schema of the object *key*; if several match, the one that outranks the others."""
    chosen: KindSchema | None = None
    for schema in schemas:
        if schema.describes(key) and (chosen is None or schema.outranks(chosen)):
            chosen = schema
    return chosen


def split_path(schemas: Sequence[KindSchema], path: str) -> tuple[KindSchema, list[str]]:
    """Return the schema that *path* begins with, and the names of the fields that follow.

    A path such as `Shop.spec.text` begins with the name of a kind, of its type or of its bucket.
    Raises `NotFoundError` if there is no such kind, and `UsageError` if several match.
    """
    matching: dict[str, list[KindSchema]] = {}
    for schema in schemas:
        for name in dict.fromkeys((schema.kind, schema.kind.partition(".")[0], schema.bucket)):
            if f"{path}.".startswith(f"{name}."):
                matching.setdefault(name, []).append(schema)
    if not matching:
        raise NotFoundError(_unknown(schemas, path))
    name = max(matching, key=len)
    chosen, *other_schemas = matching[name]
    if other_schemas:
        kinds = ", ".join(schema.kind for schema in matching[name])
        raise UsageError(f"{name} names several kinds: {kinds}; write the whole name of one")
    return chosen, [field for field in path[len(name) :].split(".") if field]


def _unknown(schemas: Sequence[KindSchema], path: str) -> str:
    names = [name for schema in schemas for name in (schema.kind.partition(".")[0], schema.bucket)]
    if not names:
        return (
            f"there is no schema of {path}: no daemon has published one; run a daemon, or name "
            "the controller with --controller"
        )
    hint = did_you_mean(path.partition(".")[0], names)
    kinds = ", ".join(schema.kind for schema in schemas[:KINDS_MAX])
    return f"there is no schema of {path}{hint or f': there are {kinds}'}"
