"""The screen of `koderz rollouts audit`: a line a task, and on standard error one for each exploit as it is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from koderz.cli.console import say_all, warn
from koderz.systems.rollouts.audit import Audit, Audited, TriedExploit

_FRESH_ONLY = "graded afresh only"


class AuditScreen:
    """Prints each exploit and the audit of each task as it is done."""

    def __init__(self, ids: Sequence[str], *, quiet: bool) -> None:
        self._width = max(map(len, ids), default=0)
        self._quiet = quiet

    def tell(self, audited: Audited) -> None:
        """Prints the lines of a task."""
        say_all(_lines(audited, self._width))

    def progress(self, trial: TriedExploit) -> None:
        """Prints how an exploit has ended."""
        if self._quiet:
            return
        passes = [
            name for name, passed in (("as published", trial.tried.published), ("koderz", trial.tried.ours)) if passed
        ]
        shown = f"passes: {', '.join(passes)}" if passes else "fails"
        count = f"{trial.done}/{trial.total}"
        warn(f"{count:>7}  {trial.task:{self._width}}  {trial.seconds:5.1f} s  {trial.tried.name}  {shown}")


def total_line(audit: Audit) -> str:
    """The last line: how many exploits were tried, and how many pass."""
    published, ours = audit.forged["published"], audit.forged["ours"]
    return f"{audit.tried} tried: {published} pass as published, {ours} under koderz' grading"


def _lines(audited: Audited, width: int) -> Iterator[str]:
    if audited.why:
        yield f"{audited.id:{width}}  unsound: {audited.why}"
        return
    tried = len(audited.tried)
    published = f"{len(audited.published):>2} of {tried}"
    is_published = any(each.published is not None for each in audited.tried)
    shown = f"as published: {published} pass" if is_published else f"{_FRESH_ONLY:{len(published) + 19}}"
    yield f"{audited.id:{width}}  {shown}    koderz: {len(audited.ours)} of {tried}"
    for each in audited.ours:
        yield f"{'':{width}}  passes: {each.name} ({each.kind})"
