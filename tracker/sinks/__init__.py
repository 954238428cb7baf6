"""Places that a run is projected into. Each can be redone from the journal at any time."""
