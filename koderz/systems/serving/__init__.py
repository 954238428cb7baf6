"""The system `serving`: completion servers under load, and how fast they answer."""
