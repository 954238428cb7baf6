"""Where experiments run."""
