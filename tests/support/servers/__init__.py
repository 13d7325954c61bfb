"""Real servers, proxies before them and substitutes for them."""
