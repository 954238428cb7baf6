"""What results mean: listing, stories, comparison, export, report."""
