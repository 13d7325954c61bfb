"""The NATS micro service protocol."""
