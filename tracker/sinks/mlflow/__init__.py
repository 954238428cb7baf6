"""Runs in MLflow: a benchmark run is a run there, with one nested run and one trace an experiment."""

from tracker.sinks.mlflow.sink import MlflowSink

__all__ = ["MlflowSink"]
