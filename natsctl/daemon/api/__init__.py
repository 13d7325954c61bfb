"""The verbs that a daemon answers over NATS."""
