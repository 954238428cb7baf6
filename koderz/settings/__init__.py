"""A user's settings: flags over environment over koderz.toml over defaults."""
