"""The version of koderz."""

__version__ = "0.1.0"
