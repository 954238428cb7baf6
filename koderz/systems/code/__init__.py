"""The system `code`: suites whose answers are Python programs."""
