"""Where koderz keeps what it may find again, as the system has it: `$XDG_CACHE_HOME/koderz` and the like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where downloaded datasets and cached specifications lie."""
    return platformdirs.user_cache_path("koderz", appauthor=False)


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where is kept what the user has said once and for all."""
    base = environ.get("XDG_STATE_HOME")
    return Path(base) / "koderz" if base else platformdirs.user_state_path("koderz", appauthor=False)
