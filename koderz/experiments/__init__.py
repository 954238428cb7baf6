"""One experiment: running its solver, recording what it does, and resuming it."""
