"""One run, from the command that begins it to its summary."""
