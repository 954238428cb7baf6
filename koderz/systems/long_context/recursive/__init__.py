"""Recursive language models: code in a session looks at a context that no model is shown whole."""
