"""Extraction of code from a model's reply, beginning with the module `extraction`."""
