"""What operators ask of daemons and buckets: one client, which commands and the console render."""
