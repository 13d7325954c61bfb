"""What users need to test their controllers: a memory store, virtual time, a harness."""
