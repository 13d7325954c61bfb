"""Support for tests that run the command line as a user does."""
