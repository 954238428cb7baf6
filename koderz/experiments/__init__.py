"""One experiment: how its solver reaches the world, and is resumed."""
