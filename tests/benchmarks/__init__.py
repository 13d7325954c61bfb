"""Benchmarks of speed and memory, each compared with a peer or a limit in the same run."""
