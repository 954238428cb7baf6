"""Runs in MLflow, as `mlflow.genai.evaluate` makes them: each arm an evaluation run, each experiment a trace."""
