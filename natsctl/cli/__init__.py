"""The `natsctl` command."""
