"""What results mean: runs read back, statistics, comparison, difficulty and failures."""
