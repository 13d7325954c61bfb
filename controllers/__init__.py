"""Example controllers; each one shows one way to write a controller."""
