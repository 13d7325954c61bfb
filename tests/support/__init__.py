"""Shared test support: servers, clients, stores, sample controllers and pytest plugins."""
