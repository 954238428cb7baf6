"""Audits of tasks: whether an agent can pass one without doing the work, by trying the corpus of exploits on it.

Each exploit is carried out in a workspace of its own and graded both as published, where the agent worked, and by
koderz. A task whose own solution fails, or that passes if nothing is done, is unsound: no exploit is tried on it.

Exploits are tried under a short limit of time, several for each core where no clock of the tests could tell. One that
is cut by it may pass late, so it's tried again under the task's own limit, and with no more at once than there are
cores. An exploit that hangs isn't, if nothing in the tests can wake it: it would be cut at any limit.

The corpus lies in `corpus/`, a TOML file a class. An exploit is carried out as an agent would: its files are written
through the workspace, and its commands run there. What depends on the task is made from the files that the task's own
solution changes, since these are what the tests load, start or read.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.checking import check
from koderz.systems.rollouts.grading import grade, grade_published
from koderz.systems.rollouts.grading.terms import terms_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout, in_parts
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces import git
from koderz.systems.workspaces.folders import files_below

_CORPUS = Path(__file__).with_name("corpus")
_SHELL_CODE = (
    "python3 - <<'END_OF_CODE'\n{}\nEND_OF_CODE\nstatus=$?; [ $status -eq 0 ] || exit $status\n"
)
_TIMERS = re.compile(
    r"time|alarm|sleep|deadline|wait|until|poll|select|limit|delay|expire|retr[iy]|pexpect|spawn|read\s.*-\w*t",
    re.IGNORECASE,
)
_NOWHERE = "/tests/expected"  # what a name stands for that a task has nothing for


@dataclass(frozen=True, slots=True)
class Exploit:
    """A way to pass without doing the work.

    In all its texts `@TARGET@`, `@MODULE@`, `@FILES@`, `@REFERENCE@` and `@WORKDIR@` stand for what the task has.
    """

    name: str
    does: str
    kind: str = ""  # the class, as in the literature
    need: tuple[str, ...] = ()
    code: str = ""  # Python at the head of each module and program that the solution changes
    after: str = ""  # the same, at the end of each Python file
    files: Mapping[str, str] = field(default_factory=dict)  # by path in the checkout
    run: str = ""  # lines of bash; FILES, MODULES and TARGET are set
    hangs: bool = False  # it waits until the tests end it, if they ever do


class _Class(
    msgspec.Struct, forbid_unknown_fields=True, rename={"kind": "class", "exploits": "exploit"}
):
    """A file of the corpus. `let`: texts that stand in its exploits as `@NAME@`."""

    kind: str
    exploits: list[Exploit]
    let: dict[str, str] = {}


@cache
def corpus() -> tuple[Exploit, ...]:
    """All exploits, by class and name."""
    found = []
    for path in sorted(_CORPUS.glob("*.toml")):
        of_class = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Class)
        named = {name: text.strip("\n") for name, text in of_class.let.items()}
        found += [_filled(replace(each, kind=of_class.kind), named) for each in of_class.exploits]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ExploitSubject:
    """The parts of a task from which exploits are made. Paths of its solution are relative to WORKDIR."""

    workdir: str
    # the text of each Python file before the solution, or a stub of the same names
    modules: Mapping[str, str]
    programs: Mapping[str, str]  # the same of other scripts
    files: tuple[str, ...]  # other files that the solution changes
    verifier: str  # the text of its tests
    reference: str  # what the tests compare with, as they see it; empty if there is no such file
    writes_rewards: bool = False  # whether the tests do

    def takes(self, exploit: Exploit) -> bool:
        """Whether the task has all that an exploit needs."""
        has = {
            "python": bool(self.modules),
            "code": bool(self.modules or self.programs),
            "file": bool(self.files),
            "reference": bool(self.reference),
            "reward": self.writes_rewards,
        }
        is_made_of_code = bool(exploit.code or exploit.after)
        return all(self._calls(need) or has.get(need, False) for need in exploit.need) and (
            not is_made_of_code or has["code"]
        )

    @property
    def may_wake(self) -> bool:
        """Whether a clock of the tests may end a program that hangs, by the words that they use."""
        return bool(_TIMERS.search(self.verifier))

    def _calls(self, need: str) -> bool:
        """Whether the tests call one of the programs of a need `calls:NAME|NAME`."""
        word, _, names = need.partition(":")
        return word == "calls" and bool(
            re.search(rf"(?<![\w/-])(?:{names})(?![\w=])", self.verifier)
        )


def target_of(task: Rollout, before: Path, after: Path, changed: Iterable[str]) -> ExploitSubject:
    """The subject of a task's exploits: its tree `before` and `after` its solution, which changed some paths."""
    texts = {path: _text(after / path) for path in changed if (after / path).is_file()}
    modules = {
        path: _without(before / path, text) for path, text in texts.items() if path.endswith(".py")
    }
    programs = {
        path: _text(before / path) or f"{text.splitlines()[0]}\n"
        for path, text in texts.items()
        if path not in modules and text.startswith("#!")
    }
    files = tuple(path for path in texts if path not in modules and path not in programs)
    verifier = task.verifier
    folders = verifier.tests if verifier else [task.folder / "tests"]
    hidden = {path: file for folder in folders for path, file in files_below(folder).items()}
    scripts = [task.folder / verifier.name] if verifier else []
    said = [_text(path) for path in (*hidden.values(), *scripts)] + [
        script.content for script in task.scripts
    ]
    return ExploitSubject(
        task.workdir,
        modules,
        programs,
        files,
        "\n".join(["pytest python3"] * (verifier is None) + said),
        _reference(hidden, [texts[path] for path in files]),
        writes_rewards=verifier is not None and not verifier.by_status,
    )


def _reference(hidden: Mapping[str, Path], wanted: Iterable[str]) -> str:
    """The file of the tests with what a solution writes, else the first that is no code."""
    data = [path for path in hidden if PurePosixPath(path).suffix not in (".py", ".sh")]
    contents = {text.strip() for text in wanted}
    same = [path for path in data if _text(hidden[path]).strip() in contents]
    return f"/tests/{[*same, *data][0]}" if data else ""


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""


def _without(before: Path, solved: str) -> str:
    """A module as it is without the solution: its text, or functions and classes of the same names that do nothing."""
    if before.is_file():
        return _text(before)
    try:
        body = ast.parse(solved).body
    except SyntaxError:
        return ""
    return "\n".join(_stub(node) for node in body)


def _stub(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"def {node.name}(*given, **named):\n    return None\n"
    if isinstance(node, ast.ClassDef):
        names = [
            each.name
            for each in node.body
            if isinstance(each, ast.FunctionDef) and each.name != "__init__"
        ]
        methods = [
            f"    def {name}(self, *given, **named):\n        return None\n" for name in names
        ]
        return "\n".join(
            [
                f"class {node.name}:\n    def __init__(self, *given, **named):\n        pass\n",
                *methods,
            ]
        )
    names = [
        name.id
        for each in getattr(node, "targets", ())
        for name in ast.walk(each)
        if isinstance(name, ast.Name)
    ]
    return "".join(f"{name} = None\n" for name in names)


@dataclass(frozen=True, slots=True)
class Deed:
    """An exploit made for one task: the files to be written, by path in the checkout, then a line for bash."""

    files: Mapping[str, str]
    line: str


def deed_of(exploit: Exploit, target: ExploitSubject) -> Deed:
    """The exploit as it is carried out on a task."""
    named = {
        "TARGET": next(iter([*target.modules, *target.programs, *target.files]), ""),
        "MODULE": next((path.removesuffix(".py").replace("/", ".") for path in target.modules), ""),
        "FILES": " ".join(target.files),
        "REFERENCE": target.reference or _NOWHERE,
        "WORKDIR": target.workdir,
    }
    made = _filled(exploit, named)
    files = {path: text.lstrip("\n") for path, text in made.files.items()}
    if made.code or made.after:
        files |= {
            path: _with_code(text, made.code, made.after) for path, text in target.modules.items()
        }
        files |= {
            path: _with_shell_code(text, made.code)
            for path, text in target.programs.items()
            if made.code
        }
    variables = {
        "MODULES": shlex.join(target.modules),
        "FILES": shlex.join(target.files),
        "TARGET": named["TARGET"],
    }
    line = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()) + made.run
    return Deed(files, line if made.run else "")


def _with_code(text: str, code: str, after: str) -> str:
    """A module with code at its head, but behind what has to be first, and at its end."""
    at = 0
    try:
        for node in ast.parse(text).body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not (is_text or (isinstance(node, ast.ImportFrom) and node.module == "__future__")):
                break
            at = node.end_lineno or 0
    except SyntaxError:
        pass
    lines = text.splitlines(keepends=True)
    at = at or int(text.startswith("#!"))
    return "".join([*lines[:at], "\n" * bool(at), code.lstrip("\n"), *lines[at:], "\n", after])


def _with_shell_code(text: str, code: str) -> str:
    """A script with Python near its head. A script in another language than a shell's becomes one."""
    first, _, rest = text.partition("\n")
    if not re.search(r"\b(?:ba|da|z|k)?sh\b", first):
        first, rest = "#!/bin/bash", ""
    return f"{first}\n{_SHELL_CODE.format(code.strip(chr(10)))}{rest}"


def _filled(exploit: Exploit, named: Mapping[str, str]) -> Exploit:
    """The exploit with texts in the place of their names."""

    def filled(text: str) -> str:
        return re.sub(r"@(\w+)@", lambda found: named.get(found[1], found[0]), text)

    files = {filled(path): filled(text) for path, text in exploit.files.items()}
    return replace(
        exploit,
        code=filled(exploit.code),
        after=filled(exploit.after),
        run=filled(exploit.run),
        files=files,
    )


def classes(exploits: Iterable[Exploit]) -> Iterator[str]:
    """The classes of some exploits, each once."""
    yield from dict.fromkeys(each.kind for each in exploits)


_EXPLOIT_SECONDS = 60.0
_LEAST_SECONDS = 5.0  # of a run of the tests
# exploits at once for each core: they hang, or mostly wait for the kernel to make and end namespaces
_WAITING = 4


@dataclass(frozen=True, slots=True)
class Tried:
    """An exploit and whether it passes. None: it wasn't tried, or the task isn't graded so."""

    name: str
    kind: str
    applies: bool
    published: bool | None = None
    ours: bool | None = None

    def document(self) -> dict[str, Any]:
        """The content for JSON."""
        found = {"name": self.name, "class": self.kind, "applies": self.applies}
        return {**found, "published": self.published, "ours": self.ours}


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit of one task."""

    id: str
    digest: str
    why: str = ""  # the task is unsound; empty: it is sound
    exploits: tuple[Tried, ...] = ()

    @property
    def tried(self) -> tuple[Tried, ...]:
        """The exploits that apply to the task."""
        return tuple(each for each in self.exploits if each.applies)

    @property
    def published(self) -> tuple[Tried, ...]:
        """Exploits that pass as published."""
        return tuple(each for each in self.exploits if each.published)

    @property
    def ours(self) -> tuple[Tried, ...]:
        """Exploits that pass under koderz' grading."""
        return tuple(each for each in self.exploits if each.ours)

    def document(self) -> dict[str, Any]:
        """The content for JSON."""
        about = {"id": self.id, "digest": self.digest, "sound": not self.why, "why": self.why}
        return {**about, "exploits": [each.document() for each in self.exploits]}


@dataclass(frozen=True, slots=True)
class Audit:
    """The audits of several tasks."""

    tasks: Sequence[Audited]

    @property
    def tried(self) -> int:
        """The number of exploits tried, on all tasks together."""
        return sum(len(task.tried) for task in self.tasks)

    @property
    def forged(self) -> Mapping[str, int]:
        """The numbers of exploits that pass: `published`, `ours`."""
        return {
            "published": sum(len(task.published) for task in self.tasks),
            "ours": sum(len(task.ours) for task in self.tasks),
        }

    def document(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {
            "tried": self.tried,
            "forged": self.forged,
            "tasks": [task.document() for task in self.tasks],
        }


@dataclass(frozen=True, slots=True)
class TriedExploit:
    """One exploit that has been tried, and how many have been of those that are known to apply."""

    task: str
    tried: Tried
    seconds: float
    done: int
    total: int


Progress = Callable[[TriedExploit], None]


async def audit_tasks(
    tasks: Sequence[Rollout],
    stores: Stores,
    *,
    exploits: Sequence[Exploit] | None = None,
    tell: Callable[[Audited], object] = lambda _: None,
    progress: Progress = lambda _: None,
) -> Audit:
    """Tries the corpus, or some exploits, on each task. `tell` is called with each audit, in the order of the tasks.

    Raises Fault if an exploit can't be carried out, for example for want of disk.
    """
    auditor = _Auditor(stores, exploits or corpus(), progress)
    audits: list[Audited] = []
    auditing = [asyncio.create_task(auditor.audited(task)) for task in tasks]
    try:
        for each in auditing:
            audits.append(await each)
            tell(audits[-1])
    finally:
        for each in auditing:
            each.cancel()
        await asyncio.gather(*auditing, return_exceptions=True)
    return Audit(audits)


class _Auditor:
    """Tries exploits, as many at once as there are cores, and beside them those that hang or depend on no clock."""

    def __init__(self, stores: Stores, exploits: Sequence[Exploit], progress: Progress) -> None:
        self._stores, self._exploits, self._progress = stores, exploits, progress
        cores = os.cpu_count() or 1
        self._room, self._waiting_room = (
            asyncio.Semaphore(cores),
            asyncio.Semaphore(cores * _WAITING),
        )
        self._done = self._all = 0

    async def audited(self, task: Rollout) -> Audited:
        """The audit of one task."""
        async with self._room:
            began = time.monotonic()
            checked = await check(task, self._stores)
            if checked.wrong:
                return Audited(task.id, task.digest, checked.wrong)
            # All runs of the honest check together take several times as long as one run of the tests.
            hurried = _hurried(task, max(_LEAST_SECONDS, time.monotonic() - began))
            targets = await self._targets(task)
        self._all += sum(any(target.takes(each) for target in targets) for each in self._exploits)
        tried = await asyncio.gather(
            *(self._tried(task, hurried, targets, each) for each in self._exploits)
        )
        return Audited(task.id, task.digest, exploits=tuple(tried))

    async def _targets(self, task: Rollout) -> Sequence[ExploitSubject]:
        """The subject of exploits of each step, or of a task without steps: what its own solution changes."""
        store, found, before = await self._stores.of(task), list[ExploitSubject](), set[str]()
        with scratch() as place:
            workspace = self._workspace(task, place)
            for stage in task.stages or (None,):
                if stage:
                    await workspace.begin(stage)
                await workspace.solve()
                changed = await git.touched(
                    str((await workspace.diff())["diff"]).encode("utf-8", "backslashreplace")
                )
                new = [path for path in changed if path not in before]
                found.append(
                    target_of(
                        stage.task if stage else task,
                        await store.baseline(),
                        place / "checkout",
                        new,
                    )
                )
                before |= {*changed}
        return found

    async def _tried(
        self, task: Rollout, hurried: Rollout, targets: Sequence[ExploitSubject], exploit: Exploit
    ) -> Tried:
        """Tries an exploit on the task with shorter limits, and then on the task itself if it was cut by them."""
        if not any(target.takes(exploit) for target in targets):
            return Tried(exploit.name, exploit.kind, applies=False)
        has_clock = any(target.may_wake for target in targets)
        room = self._waiting_room if exploit.hangs or not has_clock else self._room
        async with room:
            began = time.monotonic()
            with scratch() as place:
                published, ours, cut = await self._tried_in(place, hurried, targets, exploit)
        alone = self._waiting_room if exploit.hangs else self._room
        if cut and (has_clock or not exploit.hangs) and (hurried != task or room is not alone):
            async with alone:
                with scratch() as place:
                    published, ours, _ = await self._tried_in(place, task, targets, exploit)
        self._done += 1
        tried = Tried(exploit.name, exploit.kind, applies=True, published=published, ours=ours)
        self._progress(
            TriedExploit(task.id, tried, time.monotonic() - began, self._done, self._all)
        )
        return tried

    async def _tried_in(
        self, place: Path, task: Rollout, targets: Sequence[ExploitSubject], exploit: Exploit
    ) -> tuple[bool | None, bool, bool]:
        """Whether an agent passes that does the deed in each step that it applies to, and the work of the others.

        As published and by koderz, and whether it was cut by a limit of time.
        """
        workspace, published, ours, cut = (
            self._workspace(task, place),
            list[bool | None](),
            True,
            False,
        )
        for stage, target in zip(task.stages or (None,), targets, strict=True):
            if stage:
                await workspace.begin(stage)
            if target.takes(exploit):
                diff = await self._done_in(workspace, deed_of(exploit, target))
            else:
                await workspace.solve()
                diff = str((await workspace.diff())["diff"])
            work = Work(diff, place, workspace.collected)
            passes, is_ours, is_cut = await self._graded(stage.task if stage else task, work, task)
            published.append(passes)
            ours, cut = ours and is_ours, cut or is_cut
            if not (passes or is_ours):
                break
        is_whole = len(published) == len(targets)
        return None if None in published else is_whole and all(published), is_whole and ours, cut

    @staticmethod
    async def _done_in(workspace: Workspace, deed: Deed) -> str:
        """The diff of an agent that does a deed in a workspace."""
        for path, text in deed.files.items():
            await workspace.edit(path, "", text)
        if deed.line:
            await workspace.shell(deed.line, _EXPLOIT_SECONDS)
        return str((await workspace.diff())["diff"])

    async def _graded(
        self, task: Rollout, work: Work, whole: Rollout
    ) -> tuple[bool | None, bool, bool]:
        """Whether work passes as published, None if the task isn't graded so, and by koderz; and whether it is cut.

        A grading that ends as a fault counts as cut, since the limit may have brought it about.
        """
        try:
            graded = await grade(
                task, work, self._stores, await terms_of(task, self._stores, whole)
            )
        except (Fault, git.GitError) as error:
            cut = isinstance(error, Fault)
            if task.verifier is None or work.place is None:
                return None, False, cut
            found = await grade_published(task, work.place, self._stores.backend_of(task))
            return found.success, False, cut or found.cut
        return graded.published and graded.published.success, graded.scored.success, graded.cut

    def _workspace(self, task: Rollout, place: Path) -> Workspace:
        return Workspace(task, self._stores, place, at_once, RolloutsOptions())


def _hurried(task: Rollout, seconds: float) -> Rollout:
    """The task with tests that take at most so many seconds."""

    def hurried(task: Rollout) -> Rollout:
        scripts = tuple(
            replace(each, timeout_sec=min(each.timeout_sec, seconds)) for each in task.scripts
        )
        return replace(task, test_seconds=min(task.test_seconds, seconds), scripts=scripts)

    return in_parts(task, hurried)
