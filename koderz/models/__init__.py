"""Models and their providers: a model is opened by its name and asked for one completion at a time.

A provider is one class and one line in `PROVIDERS`, see `koderz.models.providers`; another package adds one by an
entry point. Nothing heavy is imported here. `koderz.models.pool.ModelPool` opens the models of a run.
"""

from __future__ import annotations

from koderz.models.names import LEAST_HIDDEN, PROVIDERS, Endpoint, ModelName, parse_model_name
from koderz.models.providers import Model, Opener, Provider, Service, endpoint_for, provider_of
from koderz.models.tariffs import Price

__all__ = [
    "LEAST_HIDDEN",
    "PROVIDERS",
    "Endpoint",
    "Model",
    "ModelName",
    "Opener",
    "Price",
    "Provider",
    "Service",
    "endpoint_for",
    "parse_model_name",
    "provider_of",
]
