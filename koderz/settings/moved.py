"""Documented modules that lie elsewhere now: the names that they had before still import them."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own would be loaded by each command before Ctrl-C is seen to
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    "koderz.rewards": "koderz.systems.rewards",
    "koderz.rewards.verl": "koderz.systems.rewards.verl",
    "koderz.runs.verify": "koderz.systems.publishing.verify",
    "koderz.analysis.report": "koderz.systems.reports.page",
    "koderz.analysis.report.sections": "koderz.analysis.sections",
    "koderz.analysis.labels": "koderz.systems.publishing.labels",
    "koderz.sandbox.images": "koderz.systems.workspaces.images",
    "koderz.sandbox.workspace.local": "koderz.systems.workspaces.local",
    "koderz.runs.documents": "koderz.runs.sinks",
    "koderz.analysis.saddlepoint": "koderz.analysis.statistics",
    "koderz.rlm": "koderz.systems.long_context.rlm",
    "koderz.suites.rollouts": "koderz.systems.rollouts.results",
    "koderz.suites.code": "koderz.systems.code",
    "koderz.suites.code.options": "koderz.suites.options",
    "koderz.solvers.agents": "koderz.systems.rollouts.agents",
    "koderz.solvers.agents.adapters": "koderz.systems.rollouts.agents.adapters",
}


class MovedModules:
    """Finder and loader of the modules in `MOVED`."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a moved module; None for any other."""
        if name not in MOVED:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module everything that the one has which took its place."""
        import importlib

        found = importlib.import_module(MOVED[module.__name__])
        module.__dict__.update(
            {
                name: value
                for name, value in vars(found).items()
                if name == "__getattr__" or name[:2] != "__"
            }
        )


sys.meta_path.append(MovedModules())
