"""Checks which installation this NATS system is."""

from collections.abc import AsyncIterator

from natsctl.core.coordination.installation import INSTALLATION, known_installation
from natsctl.daemon.doctor.finding import Finding, failed, ok
from natsctl.errors import InvalidObjectError, PermissionDeniedError, StoreError, StoreMissingError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.connection.connection import Connection

CHECK = "installation"
NOT_MADE = "it has no id yet: the first daemon makes one"


async def check_installation(connection: Connection) -> AsyncIterator[Finding]:
    """Give the installation's id, or the reason why it cannot be read."""
    store = KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION)
    try:
        known = await known_installation(store)
    except StoreMissingError:
        yield ok(CHECK, NOT_MADE)
    except PermissionDeniedError as error:
        yield ok(CHECK, f"only daemons need to read it: {error}")
    except (StoreError, InvalidObjectError) as error:
        advice = f"look at it: nats kv get {INSTALLATION.bucket} installation"
        yield failed(CHECK, str(error), advice)
    else:
        yield ok(CHECK, NOT_MADE if known is None else _shown(known.id, known.adopted))


def _shown(installation_id: str, adopted: tuple[str, ...]) -> str:
    return installation_id + (f", with the objects of {', '.join(adopted)}" if adopted else "")
