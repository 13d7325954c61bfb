"""What the tests share: servers, clients, stores, sample controllers and pytest plugins."""
