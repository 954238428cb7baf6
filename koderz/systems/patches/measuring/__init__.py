"""Legs, blocks of them, and what they tell of a patch."""
