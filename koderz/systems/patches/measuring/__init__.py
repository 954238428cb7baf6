"""Measuring of patches: legs, blocks of legs, and the conclusions from them."""
