"""Documents that users write: parsing, merging and editing."""
