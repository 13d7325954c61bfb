"""Controllers that are ready to run; each shows how one thing is done."""
