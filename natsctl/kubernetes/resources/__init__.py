"""Names, paths and encodings of resources."""
