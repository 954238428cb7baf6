"""Recursive language models."""
