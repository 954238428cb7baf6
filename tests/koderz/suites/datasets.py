"""Small datasets of suites in their published formats, and the settings by which each suite is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.koderz.suites.rows import HUMANEVAL
from tests.koderz.systems.code.test_bigcodebench import COUNTING
from tests.koderz.systems.code.test_livecodebench import stdin_row
from tests.koderz.systems.code.test_mbpp import RELEASED, WHOLE
from tests.koderz.systems.long_context import encrypted, test_oolong
from tests.koderz.systems.patches import rows as patches
from tests.koderz.systems.patches.test_published import GSO, ISO
from tests.koderz.systems.questions import sets

CANARY = {"browsecomp_canary": encrypted.CANARY}
JUDGED = {"roles": ("judge=simulated",)}
ASKED = ("question", "problem", "Problem", "Question", "prompt", "passage")
OF_TUPLES = (2, 116, 132, 143, 222, 261)  # of MBPP+, by number: their arguments are tuples
PAIRS = {"context": "t", "answer": [[1, 2]]}

Make = Callable[[int], Mapping[str, Any]]


def question(name: str, number: int) -> Mapping[str, Any]:
    """A row of a published set, unlike its others."""
    found = {key: value for key, value in sets.ROWS[name].items() if key not in ("id", "key", "question_id")}
    asked = next(key for key in ASKED if key in found)
    return {**found, asked: f"{found[asked]} {number}"}


ROWS: Mapping[str, Make] = {
    "humaneval": lambda n: {**HUMANEVAL, "task_id": f"Own/{n}", "prompt": f"# {n}\n{HUMANEVAL['prompt']}"},
    "humaneval+": lambda n: {**HUMANEVAL, "task_id": f"Own/{n}", "prompt": f"# {n}\n{HUMANEVAL['prompt']}"},
    "mbpp": lambda n: {**WHOLE, "task_id": n, "text": f"Write it, {n}."},
    "mbpp+": lambda n: {**RELEASED, "task_id": f"Mbpp/{OF_TUPLES[n]}", "prompt": f"# {n}\n{RELEASED['prompt']}"},
    "livecodebench": lambda n: stdin_row(("1", "1"), question_id=str(n), question_content=f"Read {n}."),
    "bigcodebench": lambda n: {
        **COUNTING,
        "task_id": f"B/{n}",
        "complete_prompt": f"# {n}\n{COUNTING['complete_prompt']}",
    },
    "qa": lambda n: {"input": f"{n}?", "target": "4"},
    **{name: (lambda n, name=name: question(name, n)) for name in sets.ROWS},  # type: ignore[misc]
    "ruler": lambda n: {"input": f"Text {n}.", "outputs": ["x"], "length": 64, "token_position_answer": 1},
    "oolong": lambda n: {**test_oolong.row(n), "context_window_id": 0},
    "oolong-real": lambda n: {**test_oolong.row(n), "answer": "4", "context_window_id": 0},
    "oolong-pairs": lambda n: {**PAIRS, "id": n, "question": f"{n}?"},
    "browsecomp-plus": lambda n: encrypted.rows(6)[n],
    "rollouts": lambda n: {"task_id": f"t{n}", "lm": {"instructions": f"Do {n}."}},
    "koderz-perf-mini": lambda n: {**ISO, "instance_id": f"iso-{n}"},
    "koderz-perf-pypi": lambda n: {**ISO, "instance_id": f"iso-{n}"},
    "gso": lambda n: {**GSO, "instance_id": f"numpy__numpy-{n}"},
    "iso": lambda n: {**ISO, "instance_id": f"iso-{n}"},
}
"""A row of each suite by number."""

PROGRAMS = ("humaneval", "humaneval+", "mbpp", "mbpp+", "livecodebench", "bigcodebench")
ONCE = {"mode": "zero-shot"}
LONG = {"context_lengths": ("1024",)}
SEARCH = {"budget_calls": 30, "validation_items": 10, "test_items": 10, "train_items": 10}
MADE_UP: Mapping[str, Mapping[str, Any]] = {
    "ruler": {**LONG, "limit": 1},
    "oolong": {"limit": 1},
    "browsecomp-plus": {"limit": 1},
    "datasets": {"solver": "none", "samples": 1, **SEARCH},
    "rollouts": {"limit": 1},
    "serving": {"num_prompts": 2},
}
"""The settings of suites that are tried with tasks of their own."""


def settings_of(suite: str, folder: Path) -> Mapping[str, Any]:
    """The settings of a small run of a suite, whose dataset is written to the folder."""
    if suite in MADE_UP:
        return MADE_UP[suite]
    more = JUDGED if suite == "simpleqa" else ONCE if suite in PROGRAMS else {}
    if suite in ("gso", "iso", "koderz-perf-mini", "koderz-perf-pypi"):
        row = patches.made(folder)["gso" if suite == "gso" else "iso"]
        return {"dataset": patches.written(folder, row)}
    return {"dataset": sets.write_rows(folder / "rows.jsonl", *map(ROWS[suite], range(2))), **more}
