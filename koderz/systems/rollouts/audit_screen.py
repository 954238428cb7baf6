"""The screen of `koderz rollouts audit`: a line a task, and progress on a terminal or now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Self

from koderz.cli.console import LINE_EVERY, counted, is_live, say_all, warn
from koderz.systems.rollouts.audit import Audit, Audited

_CLEAR = "\r\x1b[K"
_FRESH_ONLY = "graded afresh only"


class AuditScreen:
    """Prints the audit of each task as it is done. Leaving it wipes the progress."""

    def __init__(self, ids: Sequence[str], *, quiet: bool) -> None:
        self._width = max(map(len, ids), default=0)
        self._quiet, self._live = quiet, is_live()
        self._next = time.monotonic() + LINE_EVERY
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wipe()

    def tell(self, audited: Audited) -> None:
        """Prints the lines of a task."""
        self._wipe()
        say_all(_lines(audited, self._width))

    def progress(self, done: int, total: int) -> None:
        """Shows how many exploits have been tried of those that are known to apply."""
        if self._quiet:
            return
        if self._live:
            sys.stderr.write(f"{_CLEAR}{done} of {counted(total, 'exploit')} tried")
            sys.stderr.flush()
            self._shown = True
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY
            warn(f"{done} of {counted(total, 'exploit')} tried")

    def _wipe(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = False


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
