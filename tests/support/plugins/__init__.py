"""Pytest plugins: fixtures, and the tests that this machine cannot run."""
