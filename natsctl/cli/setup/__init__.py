"""Commands that check and print the configuration."""
