"""Commands that run a daemon, check its health, or create the controllers for it."""
