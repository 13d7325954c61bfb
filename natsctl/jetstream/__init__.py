"""Objects kept in NATS JetStream KV."""

from natsctl.jetstream.lazy_imports import import_nats

import_nats()
