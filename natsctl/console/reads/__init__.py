"""The daemons, buckets and values behind the answers of the console."""
