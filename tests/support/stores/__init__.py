"""Stores and objects to test them with."""
