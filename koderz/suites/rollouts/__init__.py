"""Agents at work on prepared repositories."""
