"""GSO's evaluations of patches: logs, speed-ups and reports."""
