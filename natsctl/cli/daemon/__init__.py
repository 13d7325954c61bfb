"""Commands that start a daemon or look at one from the shell."""
