"""Where koderz keeps what it may find again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where downloaded datasets and cached specifications lie: `$XDG_CACHE_HOME/koderz`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koderz"
