"""The system `questions`."""
