"""Names for packages that extend koderz: classes and decorators, and the values that they take and return.

Each name is imported from its own module when it is first used, so that `from koderz.extend import Solver, solver`
loads nothing else. Nothing in koderz imports this module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from koderz.analysis.export import (
        Format,
        folder_format,
    )
    from koderz.engines import (
        Driver,
        Engine,
        RemoteView,
        StoredRun,
    )
    from koderz.engines.resources import (
        model_facts,
        open_resources,
    )
    from koderz.errors import (
        Fault,
        KoderzError,
        Unreachable,
    )
    from koderz.experiments.calls import (
        Caller,
    )
    from koderz.experiments.runner import (
        ExperimentRunner,
    )
    from koderz.models import (
        Endpoint,
        Model,
        ModelName,
        Price,
        Provider,
        Service,
    )
    from koderz.plans.plan import (
        Plan,
    )
    from koderz.sandbox import (
        Job,
        JobResult,
        Opening,
        Sandbox,
        open_sandbox,
    )
    from koderz.sandbox.workspace import (
        Backend,
        Command,
        Ended,
    )
    from koderz.settings.options import (
        option,
    )
    from koderz.settings.schema import (
        Settings,
    )
    from koderz.settings.systems import (
        System,
    )
    from koderz.solvers import (
        Solver,
        solver,
    )
    from koderz.solvers.definition import (
        AskHandle,
        ExclusiveHandle,
        GradeHandle,
        JudgeHandle,
        LongContextHandle,
        OnceHandle,
        RecallHandle,
        WorkspaceHandle,
    )
    from koderz.suites.matrix import (
        Matrix,
        MatrixArm,
        MatrixCells,
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
        Finding,
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
    from koderz_tracker.parts import (
        Part,
    )
    from koderz_tracker.sinks import (
        Sink,
        SinkDown,
        SinkSlow,
        Source,
    )

_HOMES = {
    "koderz.analysis.export": (
        "Format",
        "folder_format",
    ),
    "koderz.engines": (
        "Driver",
        "Engine",
        "RemoteView",
        "StoredRun",
    ),
    "koderz.engines.resources": (
        "model_facts",
        "open_resources",
    ),
    "koderz.errors": (
        "Fault",
        "KoderzError",
        "Unreachable",
    ),
    "koderz.experiments.calls": ("Caller",),
    "koderz.experiments.runner": ("ExperimentRunner",),
    "koderz.models": (
        "Endpoint",
        "Model",
        "ModelName",
        "Price",
        "Provider",
        "Service",
    ),
    "koderz.plans.plan": ("Plan",),
    "koderz.sandbox": (
        "Job",
        "JobResult",
        "Opening",
        "Sandbox",
        "open_sandbox",
    ),
    "koderz.sandbox.workspace": (
        "Backend",
        "Command",
        "Ended",
    ),
    "koderz.settings.options": ("option",),
    "koderz.settings.schema": ("Settings",),
    "koderz.settings.systems": ("System",),
    "koderz.solvers": (
        "Solver",
        "solver",
    ),
    "koderz.solvers.definition": (
        "AskHandle",
        "ExclusiveHandle",
        "GradeHandle",
        "JudgeHandle",
        "LongContextHandle",
        "OnceHandle",
        "RecallHandle",
        "WorkspaceHandle",
    ),
    "koderz.suites.matrix": (
        "Matrix",
        "MatrixArm",
        "MatrixCells",
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
        "Finding",
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
    "koderz_tracker.parts": ("Part",),
    "koderz_tracker.sinks": (
        "Sink",
        "SinkDown",
        "SinkSlow",
        "Source",
    ),
}

__all__ = [
    "AskHandle",
    "Backend",
    "Caller",
    "Command",
    "Completion",
    "Concluding",
    "Driver",
    "Ended",
    "Endpoint",
    "Engine",
    "ExclusiveHandle",
    "Expected",
    "ExperimentContext",
    "ExperimentHandles",
    "ExperimentRunner",
    "Fault",
    "Finding",
    "Format",
    "GradeHandle",
    "Headline",
    "Job",
    "JobResult",
    "JudgeContext",
    "JudgeHandle",
    "Judging",
    "KoderzError",
    "Lesson",
    "LongContextHandle",
    "Matrix",
    "MatrixArm",
    "MatrixCells",
    "Measure",
    "Message",
    "Model",
    "ModelName",
    "Noticing",
    "OnceHandle",
    "Opening",
    "Part",
    "Plan",
    "Price",
    "ProgramSuite",
    "Provider",
    "RecallHandle",
    "RemoteView",
    "Reply",
    "RunContext",
    "Sampling",
    "Sandbox",
    "Service",
    "Settings",
    "Sink",
    "SinkDown",
    "SinkSlow",
    "Solver",
    "Source",
    "StoredRun",
    "Suite",
    "SuiteSource",
    "System",
    "Task",
    "Unreachable",
    "Verdict",
    "WorkspaceContext",
    "WorkspaceHandle",
    "folder_format",
    "model_facts",
    "open_resources",
    "open_sandbox",
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
