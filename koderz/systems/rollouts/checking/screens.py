"""Screens of checks and audits: a line a task as it is done, and on a terminal a bar or each exploit as it is tried."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Self

from koderz.cli.console import elapsed, is_live, say, say_all, warn
from koderz.systems.rollouts.checking import Checked
from koderz.systems.rollouts.checking.audit import Audit, Audited, TriedExploit
from koderz.systems.rollouts.tasks.runnable import Omission

_CLEAR = "\r\x1b[K"
_BAR = 24  # columns
_LINE_EVERY = 60.0  # seconds between two lines of progress, where each task has one of its own


class CheckScreen:
    """Prints the result of each task. Leaving it wipes the bar."""

    def __init__(self, total: int, *, strict: bool, json: bool, quiet: bool) -> None:
        """`total`: the tasks that are to be checked; `json`: nothing but the progress is shown."""
        self._total, self._strict, self._json, self._quiet = total, strict, json, quiet
        self._began = self._last = time.monotonic()
        self._done = 0
        self.failed = False

    def __enter__(self) -> Self:
        self._progress()
        return self

    def __exit__(self, *_: object) -> None:
        self._wipe()

    def refused(self, each: Omission) -> None:
        """Prints the line of a task that can't be loaded or can't run here."""
        if not self._json:
            say(f"refused  {each.id}: {each.why}")

    def take(self, checked: Checked) -> None:
        """Prints the line of a task that has been checked."""
        self._done += 1
        wrong = checked.wrong or (checked.warning if self._strict else "")
        self.failed = self.failed or bool(wrong)
        self._wipe()
        if not self._json:
            say(f"{'failed' if wrong else 'ok':6}  {checked.id}{f': {wrong}' if wrong else ''}")
            if checked.warning and not self._strict:
                warn(f"{checked.id}: {checked.warning}")
        self._progress()

    def _progress(self) -> None:
        if self._quiet or self._total < 2:
            return
        now = time.monotonic()
        left = (now - self._began) / self._done * (self._total - self._done) if self._done else None
        told = f"{self._done} of {self._total} checked{f', {elapsed(left)} left' if left is not None else ''}"
        if is_live():
            filled = _BAR * self._done // self._total
            sys.stderr.write(f"{_CLEAR}{'█' * filled}{'░' * (_BAR - filled)} {told}")
            sys.stderr.flush()
        elif now - self._last >= _LINE_EVERY:
            self._last = now
            warn(told)

    def _wipe(self) -> None:
        if not self._quiet and self._total > 1 and is_live():
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


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
            name
            for name, passed in (
                ("as published", trial.tried.published),
                ("koderz", trial.tried.ours),
            )
            if passed
        ]
        shown = f"passes: {', '.join(passes)}" if passes else "fails"
        count = f"{trial.done}/{trial.total}"
        warn(
            f"{count:>7}  {trial.task:{self._width}}  {trial.seconds:5.1f} s  {trial.tried.name}  {shown}"
        )


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
    shown = (
        f"as published: {published} pass"
        if is_published
        else f"{_FRESH_ONLY:{len(published) + 19}}"
    )
    yield f"{audited.id:{width}}  {shown}    koderz: {len(audited.ours)} of {tried}"
    for each in audited.ours:
        yield f"{'':{width}}  passes: {each.name} ({each.kind})"
