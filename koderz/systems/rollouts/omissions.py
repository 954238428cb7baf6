"""Tasks that are left out of a run or a check, by reason: one line of thousands would say nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from koderz.errors import KoderzError
from koderz.systems.rollouts.formats import require_work
from koderz.systems.rollouts.runnable import Omission
from koderz.systems.rollouts.task import Rollout

_FOLDERS = re.compile(r"(?<![\w.])/[^\s:]*/(?=[^/\s])")  # of a path, which differ from task to task
_QUOTED = re.compile(r"\"[^\"]*\"|(?<!\w)'[^']*'")
_NUMBER = re.compile(r"(, line )?\b\d+(\.\d+)?\b")
_LONGEST = 160  # characters of a reason
_SHOWN = 20  # reasons


class Reason(NamedTuple):
    """A reason why tasks are left out."""

    reason: str  # without what differs from task to task
    number: int  # of tasks
    example: str  # the id of the first


def reason_of(why: str) -> str:
    """Why a task is left out, without folders, numbers and quoted texts, so that it is equal for alike tasks."""
    return _NUMBER.sub("…", _QUOTED.sub("…", _FOLDERS.sub("", why)))[:_LONGEST]


def by_reason(left_out: Iterable[Omission]) -> Sequence[Reason]:
    """The reasons, the most frequent first."""
    counts, examples = Counter[str](), dict[str, str]()
    for each in left_out:
        reason = reason_of(each.why.removeprefix(each.id).lstrip(": "))
        counts[reason] += 1
        examples.setdefault(reason, each.id)
    return [Reason(reason, number, examples[reason]) for reason, number in counts.most_common()]


def notices_of(left_out: Sequence[Omission], tasks: int) -> Iterator[str]:
    """A table of reasons as sentences: the number of tasks, and the first of them with its own words."""
    if not left_out:
        return
    yield f"{len(left_out)} of {tasks} tasks are left out:"
    first = {each.id: each.why for each in reversed(left_out)}
    reasons = by_reason(left_out)
    for reason in reasons[:_SHOWN]:
        yield f"{reason.number:>5}  such as {reason.example}: {first[reason.example]}"
    if more := reasons[_SHOWN:]:
        yield f"{sum(reason.number for reason in more):>5}  for {len(more)} other reasons"


def ignored_keys(tasks: Iterable[Rollout]) -> Iterator[str]:
    """A sentence for each key of tasks' files that nothing reads, in Harbor as here."""
    counts, examples = Counter[str](), dict[str, str]()
    for task in tasks:
        for key in dict.fromkeys(task.ignored_keys):
            counts[key] += 1
            examples.setdefault(key, task.id)
    for key, number in counts.most_common(_SHOWN):
        more = "" if number == 1 else f" and {number - 1} more"
        yield f"{key}: nothing reads this, in {examples[key]}{more}"


def workable(
    tasks: Iterable[Rollout], is_judged: Callable[[Rollout], bool]
) -> tuple[Sequence[Rollout], Sequence[Omission]]:
    """The tasks that an agent can work on and something judges, and the others."""
    able, left_out = list[Rollout](), list[Omission]()
    for task in tasks:
        try:
            require_work(task, judged=is_judged(task))
        except KoderzError as error:
            left_out.append(Omission(task.id, str(error)))
        else:
            able.append(task)
    return able, left_out


def require_none(left_out: Sequence[Omission], tasks: int) -> None:
    """Raises KoderzError for the first task that is left out, with the way to have the others run without it."""
    if not left_out:
        return
    more = f" (and {len(left_out) - 1} more of {tasks})" if len(left_out) > 1 else ""
    raise KoderzError(f"{left_out[0].why}{more}{'; --skip-unrunnable leaves such tasks out' if tasks > 1 else ''}")
