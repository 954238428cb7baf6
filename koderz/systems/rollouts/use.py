"""Whether an agent used what its arm gives it, told by the tools that it called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from koderz.systems.rollouts.additions import Addition

USED = "used"
"""The fact of a rollout that says of each thing whose use can be told whether the agent used it."""


def used_in(additions: Iterable[Addition], actions: Sequence[str]) -> Mapping[str, Any]:
    """The facts of a rollout's verdict on what its agent used; none if it has nothing whose use can be told.

    `actions`: the tools that the agent called with what it gave them, as its own stream and its model's replies have
    them. A skill is used where a file of its folder is named, or the tool `Skill` opens it, and a server where a tool
    of its is called. Context files, memories and system prompts stand in every prompt.
    """
    marks = {each.name: _mark_of(each) for each in additions if each.kind in ("skill", "mcp") and not each.inside}
    found = {name: any(mark.search(action) for action in actions) for name, mark in marks.items()}
    return {USED: found} if found else {}


def _mark_of(addition: Addition) -> re.Pattern[str]:
    name = re.escape(addition.name.partition("@")[0])
    if addition.kind == "mcp":
        return re.compile(rf"\A(?:mcp__)?{name}__")
    # Each agent has its skills in a folder of another name; `ls` of all of them opens none.
    return re.compile(rf"\ASkill\b.*[\"']{name}[\"']|\b(?:skills|additions/\w+)/{name}\b|\b{name}/SKILL\.md")
