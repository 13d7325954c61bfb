"""The `natsctl` command line."""
