"""Commands that read and write objects."""
