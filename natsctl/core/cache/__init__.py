"""Local copies of stores, kept current by informers."""
