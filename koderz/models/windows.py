"""The context windows of models."""

from __future__ import annotations

from collections.abc import Iterable

from koderz.models.names import parse_model_name


def published_window(models: Iterable[str]) -> int | None:
    """The smallest context window, in tokens, that is published for any of the models; None if none is."""
    return min((window for name in models if (window := _published(name))), default=None)


def _published(name: str) -> int | None:
    model = parse_model_name(name)
    if model.provider in ("simulated", "ollama"):  # which is asked for as much as the settings say
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        _, found = get_snapshot().find_provider_model(model.name, None, model.provider, None)
    except LookupError:
        return None
    window: int | None = found.context_window
    return window
