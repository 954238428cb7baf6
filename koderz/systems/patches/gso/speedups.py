"""GSO's rules: the speed-ups of a patch over its base and the human's commit, and whether they suffice.

s_i(X→Y) = T_X,i / T_Y,i for the mean time T of each test i: GM is their geometric mean, HM their harmonic one.
opt_base: GM(base→patch), rounded to a tenth, is at least 1.2; opt_commit: also HM(commit→patch) > 0.95.
Source: GSO's harness, https://github.com/gso-bench/gso (c89aecd).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from koderz.systems.patches.gso.logs import SIDES, Times

LEAST, ENOUGH = 1.2, 0.95
"""The required gain over base, and the required share of the human's gain."""

_HOW = ("am_speedup", "gm_speedup", "gsd_speedup", "slowdown_perc", "hm_speedup")


def speedups(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """The speed-up of each test; infinity if it takes no time after. A longer list is cut."""
    return [b / a if a > 0 else float("inf") for b, a in zip(before, after, strict=False)]


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None for no ratios."""
    import numpy as np

    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def harmonic_mean(ratios: Sequence[float]) -> float | None:
    """The harmonic mean over all, summing only those above 0; None for none. ZeroDivisionError for infinite ones."""
    if not ratios:
        return None
    above = [ratio for ratio in ratios if ratio > 0]
    return len(ratios) / sum(1 / ratio for ratio in above) if above else float("inf")


def graded(times: Mapping[str, Times | None]) -> dict[str, Any]:
    """The `opt_base`, `opt_commit`, `opt_main`, `time_stats` and `opt_stats` of one evaluation.

    Raises TypeError or ZeroDivisionError where times that are needed are missing or can't be compared.
    """
    import numpy as np

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # one test has no deviation
        return _graded(times)


def _graded(times: Mapping[str, Times | None]) -> dict[str, Any]:
    import numpy as np

    means: dict[str, list[Any]] = {side: [np.mean(each) for each in times[side] or ()] for side in SIDES}
    mean: dict[str, Any] = {side: np.mean(each) if each else None for side, each in means.items()}
    spread = {side: (np.std(each, ddof=1) if len(each) > 1 else 0.0) if each else None for side, each in means.items()}
    time_stats: dict[str, Any] = {}
    for side in SIDES:
        time_stats |= {f"{side}_mean": mean[side], f"{side}_std": spread[side]}
    compared = {
        pair: _compared(mean[x], mean[y], means[x], means[y])
        for pair, x, y in (
            ("patch_commit", "commit", "patch"),
            ("patch_base", "base", "patch"),
            ("commit_base", "base", "commit"),
            ("patch_main", "main", "patch"),
        )
    }
    named = {
        pair: {f"{how}_{pair}": value for how, value in zip(_HOW, values, strict=True)}
        for pair, values in compared.items()
    }
    unset = [
        f"{how}_patch_{side}" for how in ("opt_perc", "speedup", "gm_speedup") for side in ("base", "commit", "main")
    ]
    opt_stats: dict[str, Any] = dict.fromkeys(unset)
    opt_stats |= named["patch_commit"] | named["patch_base"] | named["commit_base"]
    opt_stats["per_test_speedups"] = {
        "patch_base_speedups": speedups(means["base"], means["patch"]),
        "commit_base_speedups": speedups(means["base"], means["commit"]),
        "patch_commit_speedups": speedups(means["commit"], means["patch"]),
    }
    flags = {"opt_base": False, "opt_commit": False, "opt_main": False}
    if mean["base"] > mean["patch"] and round(np.float64(compared["patch_base"][1]), 1) >= LEAST:
        flags["opt_base"] = True
        flags["opt_commit"] = bool(compared["patch_commit"][4] > ENOUGH)
        if mean["main"] is not None and compared["patch_main"][4] > ENOUGH:
            flags["opt_main"] = True
            opt_stats |= named["patch_main"]
    return {**flags, "time_stats": {**time_stats, "per_test_means": means}, "opt_stats": opt_stats}


def _compared(before: Any, after: Any, befores: Sequence[Any], afters: Sequence[Any]) -> tuple[Any, ...]:
    """The figures in the order of `_HOW`; None if a side has no times."""
    import numpy as np

    if before is None or after is None:
        return (None,) * len(_HOW)
    ratios = speedups(befores, afters)
    slower = [b / a for b, a in zip(befores, afters, strict=False)]
    return (
        before / after,
        geometric_mean(ratios),
        np.exp(np.std(np.log(ratios), ddof=1)),
        sum(each < 1 for each in slower) / len(slower) * 100,
        harmonic_mean(ratios),
    )
