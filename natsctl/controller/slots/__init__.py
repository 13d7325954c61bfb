"""The kinds that a controller declares, and its access to them."""
