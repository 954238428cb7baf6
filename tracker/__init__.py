"""Records experiments in journals and makes summaries of them. Knows nothing of models, prompts or sandboxes.

koderz imports it as `koderz_tracker`, which no file of a user's is called; `tracker` is a second name of the same
modules, for scripts, and gives way to a `tracker.py` of their own.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from koderz_tracker.memory.cortex import Cortex, open_cortex


_OWN = "koderz_tracker"


class SecondName:
    """Finder and loader of modules by a second name of their package."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module of the package; None for any other."""
        return ModuleSpec(name, self) if name.startswith(f"{self._package}.") else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the package's own module in the place of the one that Python made."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(_OWN + name.removeprefix(self._package))


def stand_for(package: str) -> None:
    """Make `package`, which is being imported, a second name of `koderz_tracker`."""
    sys.meta_path.insert(0, SecondName(package))
    sys.modules[package] = importlib.import_module(_OWN)


_HOMES = {"Cortex": "koderz_tracker.memory.cortex", "open_cortex": "koderz_tracker.memory.cortex"}

__all__ = ["Cortex", "open_cortex"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "tracker":
    stand_for(__name__)
