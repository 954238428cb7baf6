"""The folders in which koderz stores files, by the system's conventions, such as `$XDG_CACHE_HOME/koderz`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The folder of downloaded datasets and cached specifications."""
    return platformdirs.user_cache_path("koderz", appauthor=False)


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of lasting decisions of the user, such as trust."""
    base = environ.get("XDG_STATE_HOME")
    return Path(base) / "koderz" if base else platformdirs.user_state_path("koderz", appauthor=False)
