"""A key-value bucket: reads, writes, watches."""
