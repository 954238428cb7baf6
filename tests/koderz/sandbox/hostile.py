"""Programs that lie, steal, break out and use up; `hostile.toml` holds them."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROGRAMS: list[dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[
    "program"
]
