"""The connection to NATS and the requests over it."""
