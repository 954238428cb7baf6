"""What a package needs to extend koderz: classes and decorators, and the values that they take and return.

Each name is imported from its own module when it is first used, so that `from koderz.extend import Solver, solver`
loads nothing else. Nothing in koderz imports this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.models import Endpoint, Model, ModelName, Price, Provider, Service
    from koderz.settings.options import option
    from koderz.solvers import Solver, solver
    from koderz.solvers.handles import (
        AskHandle,
        ExclusiveHandle,
        GradeHandle,
        JudgeHandle,
        LongContextHandle,
        OnceHandle,
        RecallHandle,
        WorkspaceHandle,
    )
    from koderz.types import Completion, Expected, Message, Reply, Sampling, Task, Verdict

_HOMES = {
    "koderz.models": ("Endpoint", "Model", "ModelName", "Price", "Provider", "Service"),
    "koderz.settings.options": ("option",),
    "koderz.solvers": ("Solver", "solver"),
    "koderz.solvers.handles": (
        "AskHandle",
        "ExclusiveHandle",
        "GradeHandle",
        "JudgeHandle",
        "LongContextHandle",
        "OnceHandle",
        "RecallHandle",
        "WorkspaceHandle",
    ),
    "koderz.types": ("Completion", "Expected", "Message", "Reply", "Sampling", "Task", "Verdict"),
}

__all__ = [
    "AskHandle",
    "Completion",
    "Endpoint",
    "ExclusiveHandle",
    "Expected",
    "GradeHandle",
    "JudgeHandle",
    "LongContextHandle",
    "Message",
    "Model",
    "ModelName",
    "OnceHandle",
    "Price",
    "Provider",
    "RecallHandle",
    "Reply",
    "Sampling",
    "Service",
    "Solver",
    "Task",
    "Verdict",
    "WorkspaceHandle",
    "option",
    "solver",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'koderz.extend' has no attribute {name!r}")
