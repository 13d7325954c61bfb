"""Objects kept in NATS JetStream KV."""
