"""Analysis of results: reading runs back, statistics, comparison, difficulty, failures, stories, export and report."""
