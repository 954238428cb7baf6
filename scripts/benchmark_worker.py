"""`modal deploy benchmark_worker.py` is `koderz modal deploy`: the app whose containers run experiments."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import modal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from koderz.modal.admin import describe
from koderz.modal.app import app, volume

__all__ = ["app"]

if modal.is_local() and "deploy" in sys.argv:
    volume.hydrate()
    asyncio.run(describe())
