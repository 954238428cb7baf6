"""Figures of a judge's work, by step of the training and in all, in a few kilobytes however much is judged."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from koderz.systems.rewards.scores import Score

STEPS = 1024  # of which figures are kept, the latest
_A_DOUBLING = 16  # classes of durations: percentiles are off by 2 % at most
_LEAST = 1e-6  # seconds


class Durations:
    """Durations by size, from which percentiles are read."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._classes[round(_A_DOUBLING * math.log2(max(seconds, _LEAST)))] += 1

    def percentile(self, share: float) -> float | None:
        """The duration that so many (0 to 1) don't exceed, in seconds; None if there is none."""
        left = math.ceil(share * self._classes.total())
        for size in sorted(self._classes):
            left -= self._classes[size]
            if left <= 0:
                return round(2 ** (size / _A_DOUBLING), 6)
        return None


class Figures:
    """Totals of a number of scores."""

    def __init__(self) -> None:
        self._scored = self._faults = self._tampered = 0
        self._reward = 0.0
        self._causes: Counter[str] = Counter()
        self._waiting, self._judging = Durations(), Durations()

    def add(self, score: Score, waited: float) -> None:
        """Count a score."""
        self._causes[score.cause or score.verdict] += 1
        self._waiting.add(waited)
        if score.reward is None:
            self._faults += 1
            return
        self._scored += 1
        self._reward += score.reward
        self._tampered += bool(score.tampering)
        self._judging.add(score.seconds)

    def as_dict(self) -> dict[str, Any]:
        """The figures: shares from 0 to 1, durations in seconds; None where nothing was scored."""
        replies = self._scored + self._faults
        return {
            "scored": self._scored,
            "faults": self._faults,
            "mean_reward": self._reward / self._scored if self._scored else None,
            "fault_rate": self._faults / replies if replies else None,
            "tamper_rate": self._tampered / self._scored if self._scored else None,
            "causes": dict(self._causes.most_common()),
            "waiting_p50": self._waiting.percentile(0.5),
            "waiting_p99": self._waiting.percentile(0.99),
            "judging_p50": self._judging.percentile(0.5),
            "judging_p99": self._judging.percentile(0.99),
        }


class Metrics:
    """Figures in all, and of each of the latest steps."""

    def __init__(self) -> None:
        self._all = Figures()
        self._steps: OrderedDict[int, Figures] = OrderedDict()

    def add(self, score: Score, waited: float, step: int | None) -> None:
        """Count a score, which waited so many seconds for its judge."""
        self._all.add(score, waited)
        if step is not None:
            self._steps.setdefault(step, Figures()).add(score, waited)
            self._steps.move_to_end(step)
            if len(self._steps) > STEPS:
                self._steps.popitem(last=False)

    def of(self, step: int | None) -> dict[str, Any]:
        """The figures of a step; None: of all scores."""
        return (self._all if step is None else self._steps.get(step, Figures())).as_dict()

    def as_dict(self, queue: int) -> dict[str, Any]:
        """All figures: `all`, `steps` by number, and the length of the `queue`."""
        steps = {str(step): figures.as_dict() for step, figures in sorted(self._steps.items())}
        return {"all": self._all.as_dict(), "steps": steps, "queue": queue}


def prometheus(found: Mapping[str, Any]) -> str:
    """The figures of `Metrics.as_dict` in Prometheus' text format."""
    lines = ["# TYPE koderz_judge_queue gauge", f"koderz_judge_queue {found['queue']}"]
    groups = [("all", found["all"]), *found["steps"].items()]
    for name in (name for name in found["all"] if name != "causes"):
        kind = "counter" if name in ("scored", "faults") else "gauge"
        lines.append(f"# TYPE koderz_judge_{name} {kind}")
        lines += [
            f'koderz_judge_{name}{{step="{step}"}} {each[name]:.9g}' for step, each in groups if each[name] is not None
        ]
    lines.append("# TYPE koderz_judge_verdicts counter")
    lines += [line for step, each in groups for line in _causes(step, each["causes"])]
    return "\n".join(lines) + "\n"


def _causes(step: str, causes: Mapping[str, int]) -> Iterator[str]:
    for cause, count in causes.items():
        name = cause.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'koderz_judge_verdicts{{step="{step}",cause="{name}"}} {count}'
