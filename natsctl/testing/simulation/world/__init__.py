"""The virtual world of a simulation: processes, the network between them and stores, and faults."""
