"""The options of the suites of patches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koderz.settings.options import option
from koderz.settings.trust import RUNS_CODE, SENDS
from koderz.suites.options import cluster_column


@dataclass(frozen=True, slots=True)
class PerformanceOptions:
    """The options for measuring patches."""

    timeout: float = option(
        300.0, "Maximum time of one leg.", "SECONDS", bounds=(0.1, 86_400), changeable=True
    )
    max_blocks: int = option(
        30, "Maximum number of blocks.", "N", bounds=(1, 1000), changeable=True
    )
    threshold: float = option(
        0.95,
        "Share of the human's speed that a patch has to exceed.",
        "SHARE",
        bounds=(0, 1),
        changeable=True,
    )
    clock: Literal["cpu", "wall"] = option(
        "cpu", "The clock that decides: cpu or wall.", "CLOCK", changeable=True
    )
    agreement: float = option(
        0.9,
        "Share of a server's greedy answers that has to be as base has it.",
        "SHARE",
        bounds=(0, 1),
        changeable=True,
    )
    rounds: int | None = option(
        None,
        "Maximum number of blocks of tasks that start a server.",
        "N",
        bounds=(1, 1000),
        changeable=True,
    )
    predictions: tuple[str, ...] = option(
        (),
        "Files of patches: lines of instance_id and model_patch, several of one id being samples; or a plain diff, of "
        "the only task or as TASK=FILE.",
        "FILE",
        listed=True,
        names_files=True,
    )
    patches: Path | None = option(
        None,
        "A folder of agents' patches: run folders below NAME/, or NAME.jsonl. Default: patches.",
        "DIR",
    )
    judge_model: str | None = option(
        None,
        "A model that reviews each patch; what it says stands beside what was measured.",
        "MODEL",
        role="judge",
    )
    image: str | None = option(
        None, "Docker and Modal: image of every task, in place of its own.", "NAME", risk=RUNS_CODE
    )
    overrides: Path | None = option(
        None,
        "Rules of your own for images, prepared environments, GPUs and models, in the form of machines.toml.",
        "FILE",
        risk=RUNS_CODE,
    )
    push: bool = option(False, "Push images that had to be built.", changeable=True, risk=SENDS)
    cluster_column: str | None = cluster_column()
    gso_strict: bool = option(
        False, "Let GSO's rule of points decide, without intervals.", changeable=True
    )
