"""The worker of an arm in other tools' files: agent and model, and the agent's version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from koderz.analysis.story import Story
from koderz_tracker.records import Arm, Plan

_AGENT = "agent:"
_KODERZ_OWN = ("koderz", "oracle", "nop", "scripted")
_NO_MODEL = ("agent:oracle", "agent:nop", "patch:base", "patch:human")


def worker_of(plan: Plan, arm: str) -> str:
    """The name of an arm in predictions: its agent and model, such as `codex+openai/gpt-4o-mini`.

    Where several arms of the run have both in common, what else their names say stands behind it.
    """
    names = _workers(tuple((each.name, _base(plan, each)) for each in plan.arms))
    return names.get(arm) or plan.model_of(arm)


def agent_version(plan: Plan, story: Story) -> str:
    """The agent's version as its command line states it; koderz' for own agents; `unknown` if not on record."""
    if story.solver.removeprefix(_AGENT) in _KODERZ_OWN or not story.solver.startswith(_AGENT):
        return str(plan.environment.get("koderz") or "unknown")
    worked: Any = story.made.get("agent")
    version = worked.get("version") if isinstance(worked, Mapping) else None
    return str(version or "unknown")


def _base(plan: Plan, arm: Arm) -> str:
    kind, _, name = arm.solver.rpartition(":")
    if arm.solver in _NO_MODEL:
        return name
    model = plan.model_of(arm.name)
    return f"{name}+{model}" if f"{kind}:" == _AGENT else model


@lru_cache(maxsize=64)
def _workers(bases: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """The names of arms, made unique by more words of the arm's name."""
    every = [base for _, base in bases]
    found: dict[str, str] = {}
    for arm, base in bases:
        known = {part for part in base.split("+") if part}
        rest = [word for part in arm.split(" · ") if part not in known and (word := _word(part))]
        name = base if every.count(base) == 1 else "+".join([base, *rest])
        taken = [*found.values()]
        number = next(n for n in range(1, len(bases) + 1) if (name if n == 1 else f"{name}+{n}") not in taken)
        found[arm] = name if number == 1 else f"{name}+{number}"
    return found


def _word(text: str) -> str:
    """A part of a name in a form that fits the name of a folder."""
    return re.sub(r"[^\w.=,:-]+", "-", text).strip("-")
