"""Long-context benchmarks as `python run_benchmarks.py` has them; koderz does the work."""
