"""Objects kept in NATS JetStream KV."""

from natsctl.jetstream.lazy_imports import without_web_sockets

without_web_sockets()
