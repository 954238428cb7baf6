"""What a plan needs: what its tasks need, as far as their solvers ask for it by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koderz.errors import KoderzError
from koderz.solvers import NEEDED, OPENED
from koderz.types import JUDGE

if TYPE_CHECKING:
    from koderz.plans.plan import Plan


def needs_of(plan: Plan) -> frozenset[str]:
    """Handles such as `judge` or `session`, and what an engine has to have, such as `gpu`."""
    pairs = {(task.needs, arm.solver.wants) for task, arm, _ in plan.cells()}
    return frozenset(need for needs, wants in pairs for need in needs if need in wants or need not in OPENED | {JUDGE})


def require_handles(plan: Plan) -> None:
    """KoderzError where a solver asks for a handle that a task of its doesn't provide, or nobody could open."""
    required: frozenset[str] = getattr(plan.suite, "required", frozenset())
    for arm in plan.arms:
        for name in sorted(required - arm.solver.wants):
            asked = f"the suite {plan.suite.name} is for solvers that name the handle {name}"
            raise KoderzError(f"{asked}; {arm.solver.name} doesn't")
    if not any(NEEDED & arm.solver.wants for arm in plan.arms):
        return
    for task, arm, _ in plan.cells():
        for name in sorted(NEEDED & arm.solver.wants):
            if name in OPENED & task.needs and not hasattr(plan.suite, f"open_{name}"):
                raise KoderzError(f"the suite {plan.suite.name} says that {task.id} needs a {name}, but can't open one")
            if name not in task.needs and arm.solver.requires(name):
                raise KoderzError(
                    f"the solver {arm.solver.name} asks for a {name}, which {task.id} doesn't provide; "
                    f"choose a suite whose tasks do, or give the parameter {name} a default"
                )
