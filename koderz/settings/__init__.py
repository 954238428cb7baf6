"""What the user wants: flags over environment over koderz.toml over defaults."""
