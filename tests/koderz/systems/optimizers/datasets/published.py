"""Published files, where they are at hand: in the folder that KODERZ_TEST_DATA names, or beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("KODERZ_TEST_DATA") or Path(__file__).parents[6] / "shared" / "data")
