"""The tests of natsctl."""
