"""Lines of users' code that an error passed through."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

import koderz
import tracker
from tracker.records import Frame

_MOST = 20
_LONGEST = 200  # characters of a line or a name

_OURS = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (koderz, tracker) if package.__file__)
_INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def frames_of(error: BaseException) -> list[Frame]:
    """The innermost 20 frames of an error in users' files, the raising one last.

    Those of installed packages are left out, unless there are no others: an extension may be installed, too. With
    `--debug` all frames are kept, of koderz and libraries too.
    """
    found = traceback.extract_tb(error.__traceback__)
    if os.environ.get("KODERZ_DEBUG"):
        return [_frame(each) for each in found]
    theirs = [each for each in found if not each.filename.startswith((*_OURS, "<frozen "))]
    own = [each for each in theirs if not each.filename.startswith(_INSTALLED)]
    return [_frame(each) for each in (own or theirs)[-_MOST:]]


def _frame(of: traceback.FrameSummary) -> Frame:
    return Frame(
        file=_writable(of.filename.removeprefix(f"{Path.cwd()}{os.sep}")),
        line=of.lineno or 0,
        function=_writable(of.name),
        source=_writable(of.line or ""),
    )


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST]
