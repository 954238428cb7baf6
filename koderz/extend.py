"""Names for packages that extend koderz: classes and decorators, and the values that they take and return.

Each name is imported from its own module when it is first used, so that `from koderz.extend import Solver, solver`
loads nothing else. Nothing in koderz imports this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.errors import (
        Fault,
        KoderzError,
        Unreachable,
    )
    from koderz.models import (
        Endpoint,
        Model,
        ModelName,
        Price,
        Provider,
        Service,
    )
    from koderz.settings.options import (
        option,
    )
    from koderz.solvers import (
        Solver,
        solver,
    )
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
    from koderz.suites.suite import (
        Concluding,
        ExperimentContext,
        ExperimentHandles,
        JudgeContext,
        Noticing,
        ProgramSuite,
        RunContext,
        Suite,
        SuiteSource,
        WorkspaceContext,
    )
    from koderz.types import (
        Completion,
        Expected,
        Headline,
        Judging,
        Lesson,
        Measure,
        Message,
        Reply,
        Sampling,
        Task,
        Verdict,
    )

_HOMES = {
    "koderz.errors": (
        "Fault",
        "KoderzError",
        "Unreachable",
    ),
    "koderz.models": (
        "Endpoint",
        "Model",
        "ModelName",
        "Price",
        "Provider",
        "Service",
    ),
    "koderz.settings.options": ("option",),
    "koderz.solvers": (
        "Solver",
        "solver",
    ),
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
    "koderz.suites.suite": (
        "Concluding",
        "ExperimentContext",
        "ExperimentHandles",
        "JudgeContext",
        "Noticing",
        "ProgramSuite",
        "RunContext",
        "Suite",
        "SuiteSource",
        "WorkspaceContext",
    ),
    "koderz.types": (
        "Completion",
        "Expected",
        "Headline",
        "Judging",
        "Lesson",
        "Measure",
        "Message",
        "Reply",
        "Sampling",
        "Task",
        "Verdict",
    ),
}

__all__ = [
    "AskHandle",
    "Completion",
    "Concluding",
    "Endpoint",
    "ExclusiveHandle",
    "Expected",
    "ExperimentContext",
    "ExperimentHandles",
    "Fault",
    "GradeHandle",
    "Headline",
    "JudgeContext",
    "JudgeHandle",
    "Judging",
    "KoderzError",
    "Lesson",
    "LongContextHandle",
    "Measure",
    "Message",
    "Model",
    "ModelName",
    "Noticing",
    "OnceHandle",
    "Price",
    "ProgramSuite",
    "Provider",
    "RecallHandle",
    "Reply",
    "RunContext",
    "Sampling",
    "Service",
    "Solver",
    "Suite",
    "SuiteSource",
    "Task",
    "Unreachable",
    "Verdict",
    "WorkspaceContext",
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
