"""The systems of koderz: a folder each, and in it the value `SYSTEM` that names what the system adds.

The core finds them by name, as it finds those of other packages (entry points of the group `koderz.systems`).
"""
