"""Runs in MLflow, as `mlflow.genai.evaluate` makes them: a benchmark run is a run, an experiment a trace of it."""
