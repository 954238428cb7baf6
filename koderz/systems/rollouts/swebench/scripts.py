"""The eval script of an instance, as it is published and in its parts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from koderz.systems.rollouts.swebench.reports import END, EXIT_CODE, START

TESTBED = "/testbed"

_BEGINNING = ("#!/bin/bash", "set -uxo pipefail")
_STATUS = "SWEBENCH_TEST_EXIT_CODE"
_KEPT = {"-W": 1, "-p": 1, "-o": 1, "--import-mode": 1}  # of pytest's options, as they change how tests end


@dataclass(frozen=True)
class EvalScript:
    """A script that installs a tree, lays the tests into it, runs them, and takes them out again."""

    text: str
    install: Sequence[str] = ()  # commands that go before, in an environment that stands in for the image

    @property
    def published(self) -> str:
        """The script as the official harness runs it: it prints the exit code of the tests behind their output."""
        lines = [*self._lines]
        end = next((number for number, line in enumerate(lines) if END in line), None)
        if end is not None:
            lines[end : end + 1] = [f"{_STATUS}=$?", lines[end], f'echo "{EXIT_CODE}: ${_STATUS}"']
        return _whole([*self.install, *lines])

    @property
    def preparation(self) -> str:
        """The part before the tests run."""
        return _whole([*self.install, *self._lines[: self._marks[0]]])

    @property
    def testing(self) -> str:
        """The part that runs the tests, in a place that is prepared."""
        start, end = self._marks
        marked = [f": '{START}'", *self._lines[start + 1 : end], f"{_STATUS}=$?", f": '{END}'"]
        return _whole([*marked, f'echo "{EXIT_CODE}: ${_STATUS}"'])

    def files(self, tree: Path) -> list[str]:
        """The files of a tree that the tests' command names; empty if it names folders, as more may lie there."""
        found = []
        for word in self._words:
            path = word.partition("::")[0]
            if word.startswith(("-", "/")) or ".." in Path(path).parts or not (tree / path).exists():
                continue
            if not (tree / path).is_file() or (tree / path).is_symlink():
                return []
            found.append(path)
        return [*dict.fromkeys(path for path in found if path.endswith(".py"))]

    @property
    def options(self) -> list[str]:
        """The options of the tests' command for pytest that change how tests end."""
        words, found = iter(self._words), list[str]()
        for word in words:
            name, equals, _ = word.partition("=")
            if word in _KEPT:
                found += [word, next(words, "")]
            elif (name in _KEPT and equals) or re.match(r"-[Wpo]\w", word):
                found.append(word)
        return found

    @cached_property
    def _lines(self) -> Sequence[str]:
        return [line for line in self.text.strip().split("\n") if line not in _BEGINNING]

    @property
    def _marks(self) -> tuple[int, int]:
        """The lines with the marks of begin and end. A script without them has no part that tests."""
        start = next((number for number, line in enumerate(self._lines) if START in line), len(self._lines))
        end = next((number for number, line in enumerate(self._lines) if END in line), len(self._lines))
        return start, max(start, end)

    @property
    def _words(self) -> Sequence[str]:
        start, end = self._marks
        try:
            return shlex.split("\n".join(self._lines[start + 1 : end]), comments=True)
        except ValueError:  # an open quotation mark
            return ()


def _whole(lines: Sequence[str]) -> str:
    return "\n".join([*_BEGINNING, *lines]) + "\n"
