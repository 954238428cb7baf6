"""The shapes of a simulated reply: prose, fences, second thoughts; and replies without code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from koderz.systems.code.tasks import CodeTask

REFUSALS = (
    "I'm sorry, but I can't help with that request.",
    "I can't provide a solution to this problem without more context.",
)


def reply_with(program: str, name: str, draw: float) -> str:
    """A program in one of the usual shapes of a reply; `draw` (0..1) chooses it.

    A body without its function is only put into a fence, with or without a word before it.
    """
    shapes = SHAPES if program.startswith(("def ", "from ", "import ")) else BODY_SHAPES
    return shapes[int(draw * len(shapes))].format(program=program, name=name)


def without_code(name: str) -> str:
    """A reply that talks about the task and never gets to the code."""
    return (
        f"To implement `{name}`, go through the input once and keep track of what was seen so far. "
        "Mind the empty input and repeated values. Let me know if you would like to see this as code."
    )


def specification(task: CodeTask | None) -> str:
    """A plausible specification of a task; its first words mark it as one in later prompts."""
    name, purpose = _name(task), _purpose(task)
    return (
        f"Specification of `{name}`\n\n"
        f"Purpose: {purpose}\n\n"
        "Behaviour:\n"
        "1. Keep the signature as it is given, and return the value: print nothing.\n"
        "2. Handle the empty input first, then a single element, then the general case.\n"
        "3. Boundaries are inclusive where the examples show it.\n"
        "4. Do not change the arguments in place.\n\n"
        "Check: every example of the docstring gives exactly the value shown."
    )


def review(task: CodeTask | None) -> str:
    """A plausible review of failed attempts; its first words mark it as guidance in later prompts."""
    return (
        f"Guidance for `{_name(task)}`\n\n"
        "The attempts follow a sound approach, but do not treat the boundary of the input as the failing "
        "assertion asks for. Trace that assertion by hand, compare each intermediate value with what the "
        "docstring says, and correct the first one that differs. Keep the rest as it is."
    )


def unrecognised() -> str:
    """The reply if no known task is asked for."""
    return "This is a simulated model: it answers only the tasks that it was given, and found none of them here."


def _name(task: CodeTask | None) -> str:
    return task.payload.entry_point if task else "the function"


def _purpose(task: CodeTask | None) -> str:
    quoted = re.search(r'"""\s*(.+?)(?:\n\s*\n|>>>|""")', task.prompt, re.DOTALL) if task else None
    return " ".join(quoted[1].split()) if quoted else "do what the task's text says."


_FENCE = "```python\n{program}\n```"
_PLAIN_FENCE = "```\n{program}\n```"
_INTRODUCED = f"Here is an implementation of `{{name}}`:\n\n{_FENCE}"
_EXPLAINED = (
    f"To solve this, we can follow the description step by step.\n\n{_FENCE}\n\n"
    "**Explanation**\n\n1. The function goes through its input once.\n"
    "2. It keeps what it needs and returns the result at the end.\n\nThis covers the examples given."
)
_THOUGHT = (
    "<think>\nThe task is to write {name}. First idea: a loop over the input; check the examples "
    f"by hand. The edge cases look fine.\n</think>\n\n{_INTRODUCED}"
)
_WITH_USAGE = f"{_INTRODUCED}\n\nTo read its description:\n\n```python\nhelp({{name}})\n```"

BODY_SHAPES: Sequence[str] = (_FENCE, _PLAIN_FENCE, f"The body of the function:\n\n{_FENCE}")
SHAPES: Sequence[str] = (
    *(_INTRODUCED, _INTRODUCED, _EXPLAINED, _EXPLAINED, _FENCE, _FENCE, "```py\n{program}\n```"),
    *(_PLAIN_FENCE, _THOUGHT, _WITH_USAGE, "{program}"),
)
"""The wrappings of a program, filled in with the name of its function."""
