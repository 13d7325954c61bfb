"""Checks of servers, buckets, leases and permissions."""
