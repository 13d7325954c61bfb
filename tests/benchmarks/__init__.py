"""How fast and how big natsctl is, beside nats-py measured in the same run: `make bench`."""
