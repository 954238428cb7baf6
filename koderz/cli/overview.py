"""A run on a screen: what it was, what it came to, and what was not passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from koderz.cli.console import elapsed
from koderz.settings import FIELDS

if TYPE_CHECKING:
    from tracker.summary import Figures, Summary

_MOST_FAULTS = 5
_TOLD_APART = ("local_model", "suite", "mode", "problems", "results", "samples", "tags")  # have lines of their own


def overview(summary: Summary, arms: Sequence[str], *, running: bool) -> Iterator[str]:
    """The lines, with what the named arms came to."""
    yield from _head(summary, running=running)
    for name in arms:
        yield ""
        yield from _figures(name, summary.arms[name].summary)
    if summary.comparison and len(arms) > 1:
        c = summary.comparison
        yield ""
        yield (
            f"iterative against zero-shot, on {c.problems} pairs: {c.success_rate_improvement:+.1f} points, "
            f"${c.cost_difference:+.4f}; passed by both {c.both_passed}, only iterative {c.only_iterative}, "
            f"only zero-shot {c.only_zero_shot}, neither {c.neither}"
        )
    yield from _faults(summary)


def _head(summary: Summary, *, running: bool) -> Iterator[str]:
    config = summary.config
    yield f"{summary.run_id} · {summary.mode} · {config.get('suite', 'humaneval')} · {config.get('local_model')}"
    if summary.simulated:
        yield "SIMULATED MODEL: these figures say nothing about any real one"
    done = sum(len(arm.results) for arm in summary.arms.values())
    status = "running" if running else summary.status
    yield f"Status: {status}{f' ({summary.reason})' if summary.reason else ''}, {done} of {summary.planned} judged"
    yield f"Begun: {summary.start_time[:19].replace('T', ' ')}, worked on for {elapsed(summary.duration_seconds)}"
    if config.get("tags"):
        yield f"Tags: {', '.join(config['tags'])}"
    if set_by_user := [f"{name}={_short(value)}" for name, value in config.items() if _is_set(name, value)]:
        yield f"Settings: {', '.join(set_by_user)}"
    yield f"Made with: {', '.join(f'{name} {_short(value)}' for name, value in _environment(summary))}"
    if summary.paid:
        yield f"Paid: ${summary.paid['total']:.4f}{_unjudged(summary.paid)}"


def _figures(name: str, f: Figures) -> Iterator[str]:
    low_high = "95% interval {:.1f}% to {:.1f}%".format(*f.success_rate_interval) if f.success_rate_interval else ""
    yield f"{name}: {f.success_rate:.1f}% passed ({f.successes} of {f.total_problems}){low_high and ', ' + low_high}"
    if len(f.pass_at_k) > 1:
        yield "  " + ", ".join(f"{k} {100 * value:.1f}%" for k, value in f.pass_at_k.items())
    cost = "" if f.cost_known else ", too low: the price of a model is unknown"
    each = f", ${f.cost_per_success:.4f} a success" if f.cost_per_success is not None else ""
    yield f"  cost ${f.total_cost:.4f}{each}{cost}"
    if any(value for tier, value in f.cost_by_tier.items() if tier != "local"):
        yield "  by tier: " + ", ".join(f"{tier} ${value:.4f}" for tier, value in f.cost_by_tier.items())
    yield (
        f"  {f.avg_iterations:.1f} attempts and {f.avg_latency:.1f} s of calls on average; "
        f"{f.tokens_in:,} tokens in, {f.tokens_out:,} out"
    )
    if f.causes:
        most = sorted(f.causes.items(), key=lambda item: (-item[1], item[0]))
        yield "  not passed: " + ", ".join(f"{count} {cause}" for cause, count in most)


def _faults(summary: Summary) -> Iterator[str]:
    if not summary.faults:
        return
    yield ""
    yield (
        f"{len(summary.faults)} faults, which are no failures; run them again with: "
        f"koderz benchmark retry {summary.run_id}"
    )
    for fault in summary.faults[:_MOST_FAULTS]:
        yield f"  {fault['problem_id']} ({fault['solver']}): {fault['reason']}"
    if len(summary.faults) > _MOST_FAULTS:
        yield f"  and {len(summary.faults) - _MOST_FAULTS} more: --failures"


def _is_set(name: str, value: Any) -> bool:
    """Whether a setting says more than that nobody changed it."""
    if name in _TOLD_APART:
        return name == "samples" and value != 1
    default = FIELDS[name].default if name in FIELDS else None
    return value is not None and value != default


def _environment(summary: Summary) -> Iterator[tuple[str, Any]]:
    for name in ("koderz", "python", "sandbox", "git_commit"):
        if summary.environment.get(name):
            yield name.replace("git_", ""), summary.environment[name]


def _unjudged(paid: dict[str, float]) -> str:
    parts = [f"${paid[name]:.4f} on {name}" for name in ("faults", "unfinished") if paid.get(name)]
    return f", of which {' and '.join(parts)}" if parts else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
