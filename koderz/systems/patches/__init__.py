"""Patches that are to make a repository faster, and the measuring of what they come to."""
