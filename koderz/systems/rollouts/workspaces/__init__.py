"""Workspaces: where agents work and verifiers run, and what travels from the one to the other."""
