"""Analysis of results: reading runs and logs back, statistics, comparison, difficulty, failures, stories, export."""
