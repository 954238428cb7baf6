"""The names that packages have in the wheel: a hook of its build."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelNames(BuildHookInterface[Any]):
    """Put `tracker` into the wheel as `koderz_tracker`, and `tracker` beside it as a second name of the same modules.

    In a checkout the link `koderz_tracker` does this, and an editable installation finds it there.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files of both names."""
        if version == "standard":
            second = {f"tracker/{name}": f"tracker/{name}" for name in ("__init__.py", "py.typed")}
            build_data["force_include"] |= {"tracker": "koderz_tracker"} | second
