"""The judge, which holds the tests, and the candidates that it asks."""
