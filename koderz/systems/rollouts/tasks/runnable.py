"""Tasks that can't run here, found before anything starts, and what is said of those that are left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from koderz.errors import KoderzError
from koderz.sandbox.docker import CLIENTS
from koderz.systems.rollouts.environments import Making, environed
from koderz.systems.rollouts.task import Rollout, in_parts
from koderz.systems.rollouts.tasks.formats import require_work
from koderz.systems.rollouts.tasks.harbor import IMAGED
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.services import has_compose

ROOTED = ("local", "contained")
"""The sandboxes that run in the root of an image without a daemon."""

NO_IMAGES = ImageStore()


class Omission(NamedTuple):
    """A task that was left out, and why."""

    id: str
    why: str


def unmet(
    task: Rollout, sandbox: str, images: ImageStore = NO_IMAGES, making: Making | None = None
) -> str:
    """The first part of a task that a sandbox can't honour, in one line; empty if there is none.

    `images` are those that sandboxes without a daemon can use. Those that tasks need are unpacked. `making` says how
    environments are made of Dockerfiles there. Raises KoderzError for a damaged image.
    """
    task = placed(task, images, making if sandbox in ROOTED else None)
    for need in task.needs:
        if sandbox not in need.sandboxes and not (need.image and _has(images, need.image, sandbox)):
            return f"{need.where} needs {need.machine}"
    if task.services and not has_compose(CLIENTS[sandbox].executable):
        return f"{task.folder}: its services need {sandbox} compose 2, which isn't here; install it"
    parts = [task, *(stage.task for stage in task.stages)]
    if sandbox in IMAGED:
        return ""
    machines = [(task.image_name, task.refused)]
    machines += [
        (part.verifier.image if isinstance(part.verifier.image, str) else "", part.verifier.refused)
        for part in parts
        if part.verifier and part.verifier.is_separate
    ]
    return next(
        filter(
            None, (_unmet_by(images, name, refused, sandbox, task) for name, refused in machines)
        ),
        "",
    )


def placed(task: Rollout, images: ImageStore, making: Making | None = None) -> Rollout:
    """The task with the WORKDIR of its image, and of its verifier's, where it names no other and the image is here.

    With `making` it has the environment that its Dockerfile makes.
    """
    if making:
        task = environed(task, making)

    def of_part(part: Rollout) -> Rollout:
        verifier = part.verifier
        name = part.image_name or part.base_image
        if name and part.workdir_of_image and (found := images.find(name)):
            part = replace(part, workdir=found.workdir)
        if verifier and verifier.workdir_of_image and isinstance(verifier.image, str):
            own = images.find(verifier.image)
            part = replace(part, verifier=replace(verifier, workdir=own.workdir)) if own else part
        return part

    return in_parts(task, of_part)


def _has(images: ImageStore, name: str, sandbox: str) -> bool:
    """Whether a sandbox without a daemon can use the image of that name."""
    return sandbox in ROOTED and images.find(name) is not None


def _unmet_by(images: ImageStore, name: str, refused: str, sandbox: str, task: Rollout) -> str:
    """The reason why a machine of that image, or where there is none of a Dockerfile's lines, can't be had."""
    if not (name and _has(images, name, sandbox)):
        return refused
    if needed := images.unpacked(name).other_user:
        return f"{task.folder}: the image {name} needs --sandbox docker: {needed}"
    if placed(task, images).workdir == "/":
        return f"{task.folder}: the image {name} has no WORKDIR; write one as environment.workdir in task.toml"
    return ""


def runnable(
    tasks: Iterable[Rollout],
    sandbox_of: Callable[[Rollout], str],
    images: ImageStore = NO_IMAGES,
    making: Making | None = None,
) -> tuple[Sequence[Rollout], Sequence[Omission]]:
    """The tasks that can run, and those that can't."""
    able, left_out = list[Rollout](), list[Omission]()
    for task in tasks:
        if why := unmet(task, sandbox_of(task), images, making):
            left_out.append(Omission(task.id, why))
        else:
            able.append(task)
    return able, left_out


def require_runnable(
    tasks: Iterable[Rollout],
    sandbox_of: Callable[[Rollout], str],
    images: ImageStore = NO_IMAGES,
    making: Making | None = None,
) -> None:
    """Raises KoderzError for the first task that can't run."""
    for task in tasks:
        if why := unmet(task, sandbox_of(task), images, making):
            raise KoderzError(f"{why}; --skip-unrunnable leaves such tasks out")


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
    raise KoderzError(
        f"{left_out[0].why}{more}{'; --skip-unrunnable leaves such tasks out' if tasks > 1 else ''}"
    )
