"""Canaries: impossible variants of a run's own tasks, mixed in with them. Whoever passes one has cheated.

In a canary's tests one expected value is another than it should be, or is contradicted by a second one. It differs from
its task in nothing else, and is used only if the task's own solution fails it. What was made and tried is kept by
digest, so that a run that is taken up again has the same ones.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import Backend
from koderz.settings.paths import cache_folder
from koderz.settings.schema import Settings
from koderz.systems.rollouts.checking import fails_own_solution
from koderz.systems.rollouts.doubt import ScriptReader, tests_in
from koderz.systems.rollouts.grading.verifiers import test_files, with_tests
from koderz.systems.rollouts.literals import Edit
from koderz.systems.rollouts.options import AMOUNT, RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.config import Config, TaskEntry
from koderz.systems.rollouts.workspaces.workspace import open_backend
from koderz.systems.workspaces.images import ImageStore
from koderz_tracker.files import write_whole

SUFFIX = "#canary"


def canaries_of(tasks: Sequence[Rollout], sandbox: str, options: RolloutsOptions) -> list[Rollout]:
    """Canaries of some of the tasks, in number as `canaries` says: `N`, or `SHARE%` of the tasks, and one at least.

    Tasks that differ in their entries' settings alone have theirs together. Raises KoderzError if there can't be as
    many, Unreachable if the backend can't run here.
    """
    amount = options.canaries or ""
    if not (found := AMOUNT.fullmatch(amount)):
        return []
    groups: dict[str, list[Rollout]] = {}
    for task in options.placed(tasks, sandbox):
        groups.setdefault(task.base or task.digest, []).append(task)
    count = math.ceil(len(groups) * int(found[1]) / 100) if found[2] else int(found[1])
    backend = open_backend(sandbox, Settings(sandbox=sandbox), ImageStore(options.images))
    with ThreadPoolExecutor(1) as pool:  # since a loop may be running here
        usable = pool.submit(
            asyncio.run, _usable(groups, count, backend, shown=options.canaries_shown)
        ).result()
    if len(usable) < count:
        raise KoderzError(
            f"--canaries {amount}: {len(usable)} of {count} can be made of these {len(groups)} tasks; a canary needs a "
            "test in Python that expects a written-down value, and an own solution that fails once it is another"
        )
    return [canary for base in usable for canary in usable[base]]


def with_canaries(config: Config, canaries: Sequence[Rollout]) -> Config:
    """The configuration with entries of canaries among the others: each entry of a task again for its canary."""
    of = {canary.canary_of: canary for canary in canaries}
    pairs = [*zip(config.entries, config.of_entries, strict=True)]
    mixed: list[tuple[TaskEntry, str]] = [*pairs]
    draw = random.Random(" ".join(canary.digest for canary in canaries))  # noqa: S311 it only mixes
    for entry, task in pairs:
        if task in of:
            mixed.insert(draw.randrange(len(mixed) + 1), (entry, of[task].id))
    entries, of_entries = tuple(entry for entry, _ in mixed), tuple(task for _, task in mixed)
    return replace(config, entries=entries, tasks=(*config.tasks, *canaries), of_entries=of_entries)


async def _usable(
    groups: Mapping[str, Sequence[Rollout]], count: int, backend: Backend, *, shown: bool
) -> dict[str, list[Rollout]]:
    """So many canaries that their tasks' own solutions fail, by the digest of the task, for each of its settings."""
    found: dict[str, list[Rollout]] = {}
    untried = sorted(groups, key=lambda base: hashlib.sha256(base.encode()).digest())
    async with backend:
        for number, base in enumerate(untried):
            if len(found) == count:
                break
            made = [
                _canary(task, base, contradicted=number % 2 == 1, shown=shown)
                for task in groups[base]
            ]
            canaries = [canary for canary in made if canary]
            if canaries and await _is_failed(canaries[0], backend):
                found[base] = canaries
    return found


def _canary(task: Rollout, base: str, *, contradicted: bool, shown: bool) -> Rollout | None:
    """An impossible variant of a task; None if it has no test that can be made impossible."""
    if task.stages:
        return None
    draw = random.Random(f"{base} {contradicted}")  # noqa: S311 it only has to be the same again
    tests = {script.path: script.content for script in task.scripts} or test_files(task)
    for path in draw.sample(sorted(tests), len(tests)):
        if changed := impossible(tests[path], draw, contradicted=contradicted):
            digest = hashlib.sha256(
                f"{task.digest}\0{path}\0{changed}\0{shown}".encode()
            ).hexdigest()[:16]
            canary = _with_tests(task, path, changed, digest)
            every = {**tests, path: changed}
            # An agent finds a verifier's tests below tests/, and scripts at their own paths.
            laid = (
                every
                if task.scripts
                else {f"tests/{name}": content for name, content in every.items()}
            )
            return replace(
                canary,
                id=f"{task.id}{SUFFIX}",
                digest=digest,
                base=f"{base}{SUFFIX}",
                canary_of=task.id,
                injected={**task.injected, **laid} if shown else task.injected,
            )
    return None


def _with_tests(task: Rollout, path: str, content: str, digest: str) -> Rollout:
    """The task with one of its test files changed."""
    if not task.verifier:
        scripts = (
            replace(each, content=content) if each.path == path else each for each in task.scripts
        )
        return replace(task, scripts=tuple(scripts))
    folder = _folder_of(digest) / "tests"
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_whole(folder / path, [content.encode()])
    return with_tests(task, folder)


async def _is_failed(canary: Rollout, backend: Backend) -> bool:
    """Whether the task's own solution fails a canary; tried once, and kept."""
    kept = _folder_of(canary.digest) / "fails"
    if kept.is_file():
        return kept.read_bytes() == b"yes\n"
    try:
        fails = await fails_own_solution(canary, backend)
    except Fault:
        return False
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_whole(kept, [b"yes\n" if fails else b"no\n"])
    return fails


def _folder_of(digest: str) -> Path:
    return cache_folder() / "canaries" / digest


def impossible(source: str, draw: random.Random, *, contradicted: bool) -> str:
    """The script with one expected value changed, or asserted a second time with another value; empty if neither can.

    A value that can't be contradicted where it stands, such as one of `parametrize`, is changed. The variants are those
    of ImpossibleBench (Z. Zhong et al., 2025, arXiv:2510.20270): one-off and conflicting.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    reader = ScriptReader(source.encode(), draw)
    tests = dict(tests_in(tree))
    for name in draw.sample([*tests], len(tests)):
        edits = [
            edit for site in reader.sites(tests[name]) for edit in site.other if _is_value(edit)
        ]
        for edit in draw.sample(edits, len(edits)):
            changed = reader.edited([[edit]])
            again = _again(tests[name], edit, reader) if contradicted else None
            found = reader.edited([[again]]) if again else changed
            if _parses(found):
                return found
    return ""


def _is_value(edit: Edit) -> bool:
    """Whether an edit puts a literal in the place of another one, as an author of tests might have written it."""
    try:
        ast.literal_eval(edit.text.decode())
    except (SyntaxError, ValueError):
        return False
    return edit.end > edit.start


def _again(function: ast.AST, edit: Edit, reader: ScriptReader) -> Edit | None:
    """The edit that repeats an assertion below itself with the changed value; None if it isn't on lines of its own."""
    for statement in ast.walk(function):
        if not isinstance(statement, ast.Assert | ast.Expr):
            continue
        first, last = reader.place(statement)
        if first <= edit.start and edit.end <= last:
            indent = reader.text[:first].rpartition(b"\n")[2]
            rest = reader.text[last:].partition(b"\n")[0].partition(b"#")[0]
            if indent.strip() or rest.strip():
                return None
            repeated = reader.text[first : edit.start] + edit.text + reader.text[edit.end : last]
            return Edit(last, last, b"\n" + indent + repeated)
    return None


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True
