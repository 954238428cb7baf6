"""Servers of completions under load: what they are sent, when, and how long it takes."""
