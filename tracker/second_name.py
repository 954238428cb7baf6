"""The name `tracker` for the modules of `koderz_tracker`, each of which is loaded once."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

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
