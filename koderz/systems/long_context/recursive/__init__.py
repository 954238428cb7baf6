"""Recursive language models: code in a session examines a context that no model sees as a whole."""
