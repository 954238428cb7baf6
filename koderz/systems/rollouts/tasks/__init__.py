"""Tasks as they are read: their formats, datasets of them, and configurations of rollouts."""
