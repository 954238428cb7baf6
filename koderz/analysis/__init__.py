"""What results mean: runs read back, statistics, comparison, difficulty, failures, stories, export and report."""
