"""The verdict on a measurement, a pure function of the record and the rule."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import msgspec

from koderz.errors import Fault
from koderz.systems.patches.measuring.bench import LEGS, Measured
from koderz.systems.patches.measuring.services import finding_of, wrong_of
from koderz.systems.patches.measuring.verdicts import (
    Block,
    Finding,
    Rule,
    gain_by_other_clock,
    is_noise,
    review_of,
)
from koderz.types import Verdict

_HACKS = {
    "moved": " Work was moved out of the timed calls.",
    "hidden": " Work was done by processes that nobody waited for, where no clock of theirs sees it.",
    "timer": " It says that it took less time than it did.",
}


def verdict_on(answer: str, rule: Rule, isolation: str) -> Verdict:
    """The verdict on the measured blocks. Raises Fault `noise` if base differs too much from itself."""
    measured = msgspec.convert(json.loads(answer), Measured)
    blocks, arm = measured.blocks, measured.arm
    status, why = measured.applied.status, measured.applied.why
    hack = log = ""
    if blocks and (wrong := wrong_of(last := blocks[-1].legs[LEGS[arm][-1]], rule)):
        status, why, hack, log, blocks = "test_failed", wrong, last.hack, last.log, blocks[:-1]
    finding = finding_of(blocks, arm, rule, measured.metrics) if blocks else None
    hack = hack or (finding.hack if finding else "")
    opt = "not"
    if status == "passed":
        opt = finding.opt if finding else "inconclusive"
    if (
        status == "passed"
        and finding
        and not measured.stopped
        and is_noise(finding, arm, len(blocks))
    ):
        off = 100 * abs(finding.speedups["aa"].value - 1)
        raise Fault(
            f"noise: base is {off:.0f} % off from itself; measure again on a machine with less to do",
            cause="noise",
        )
    success = status == "passed" and opt == "opt"
    cause = opt if status == "passed" else status
    review = review_of(finding) if finding and status == "passed" and arm == "agent" else ""
    if review and measured.inputs == "fixed":
        review += ", on inputs that are the same in each block"
    facts: dict[str, Any] = {
        "status": status,
        "opt": None if arm == "baseline" else opt,
        "hack": hack or None,
        "needs_review": review or None,
        "inputs": measured.inputs or None,
        "tampering": [*measured.applied.tampering],
        "beside": dict(finding.beside) if finding else {},
        "autocorrelation": round(finding.autocorrelation, 3) if finding else None,
        "gso": dict(finding.points) if finding and status == "passed" else {},
        **_course(finding),
        **(
            _other_clock(blocks, arm, rule)
            if finding and not (success or finding.metric or hack)
            else {}
        ),
    }
    if finding and finding.metric:
        facts |= {"metric": finding.metric, "iso": dict(finding.iso) if status == "passed" else {}}
    return Verdict(
        "passed" if success else "failed",
        "" if success else cause,
        _feedback(finding, status, opt, why, arm),
        why,
        measured.patch if arm == "agent" else None,
        metrics=_metrics(blocks, arm, finding) if finding else {},
        sandbox=isolation,
        artifacts={
            name: text
            for name, text in (("diff.patch", measured.patch), ("server.log", log))
            if text
        },
        facts=facts,
        note=review,
    )


def _other_clock(blocks: tuple[Block, ...], arm: str, rule: Rule) -> dict[str, Any]:
    """A gain by the clock that doesn't decide, such as that of a patch that waits less but works as much."""
    seen = gain_by_other_clock(blocks, arm, rule) if arm != "baseline" else None
    return (
        {"other_clock": {"clock": seen[0], "speedup_base": round(seen[1].value, 3)}} if seen else {}
    )


def _course(finding: Finding | None) -> dict[str, Mapping[str, Any]]:
    """The ratio of each block, and the limits for ratios."""
    logs, limits = (finding.logs, finding.limits) if finding else ({}, {})
    return {
        "ratios": {
            name: [float(f"{math.exp(log):.4g}") for log in each] for name, each in logs.items()
        },
        "limits": {name: round(least, 6) for name, least in limits.items()},
    }


def _metrics(blocks: tuple[Block, ...], arm: str, finding: Finding) -> dict[str, float]:
    """Speed-ups with their bounds, and the seconds of a call by arm: CPU and wall, summed over workloads."""
    metrics: dict[str, float] = {"blocks": float(len(blocks))}
    for name, each in finding.speedups.items():
        metrics |= {
            f"speedup_{name}{suffix}": value
            for suffix, value in (("", each.value), ("_low", each.low), ("_high", each.high))
            if value is not None
        }
    for leg in LEGS[arm]:
        for name in blocks[0].legs[leg].figures:
            metrics[f"{name}_{leg}"] = fmean(block.legs[leg].figures[name] for block in blocks)
        for clock in ("cpu", "wall") if not finding.metric else ():
            seconds = fmean(
                sum(getattr(t, clock) for t in block.legs[leg].work.values()) for block in blocks
            )
            metrics[f"{clock}_seconds_{leg}"] = seconds
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _feedback(finding: Finding | None, status: str, opt: str, why: str, arm: str) -> str:
    """The feedback for the author of the patch."""
    if status != "passed":
        return f"{status}: {why}"
    if finding is None:
        return "nothing was measured"
    shown: Mapping[str, str] = {
        "base": "as fast as before",
        "human": "as fast as the human's answer",
    }
    if finding.metric:
        shown = {
            "base": f"as good as before by {finding.metric}",
            "human": "as good as the human's answer",
        }
    ratios = [
        f"{each.value:.2f} times {shown[name]}"
        for name, each in finding.speedups.items()
        if name in shown
    ]
    if arm == "baseline":
        return f"base is {finding.speedups['aa'].value:.3f} times as fast as itself"
    hack = _HACKS.get(finding.hack, "")
    more = 1000 * finding.beside.get(arm, 0.0)
    beside = (
        f" What it does beside each call, {more:.3g} ms more than before, counts with the call."
        if more
        else ""
    )
    return f"{opt}: {', '.join(ratios)}.{beside}{hack}"
