"""Real servers, and what stands before or instead of them."""
