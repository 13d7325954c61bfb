"""Documents that people write: read, merged, edited and printed."""
