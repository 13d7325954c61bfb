"""Commands that ask running daemons, or do their work once without a daemon."""
