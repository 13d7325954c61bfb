"""A controller on real servers, and the faults that a test injects."""
