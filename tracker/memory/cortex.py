"""The asyncio interface of the memory store, with the methods of the Cortex tools. The store loses nothing.

    async with open_cortex() as cortex:
        runs = await cortex.export_memories(tags=["benchmark_run", "zero-shot"])

SQLite runs on a thread of its own, so the event loop never waits for a disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, partialmethod, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson

from koderz_tracker.files import refuse_linked_database
from koderz_tracker.memory import database, maintenance
from koderz_tracker.memory.claims import PREFIX, marked
from koderz_tracker.memory.detail import lesson_of
from koderz_tracker.memory.memories import (
    CATEGORIES,
    TYPES,
    Draft,
    InvalidMemory,
    Memory,
    as_memory,
    choose,
    drafts_of,
    moment,
)
from koderz_tracker.memory.search import SearchHit, by_likeness, ranked, search
from koderz_tracker.memory.store import Filter, Progress, Store
from koderz_tracker.memory.vectors import Vectors
from koderz_tracker.records import now
from koderz_tracker.registry import find
from koderz_tracker.scrubber import Scrubber

P = ParamSpec("P")
T = TypeVar("T")

MODES = ("search", "recent", "important")
QUESTIONS: Mapping[str, str] = {
    **{
        name: f"koderz.analysis.questions:{name}"
        for name in ("find", "best", "hardest", "tried", "compare", "lessons")
    },
    **{name: f"koderz.analysis.claims:{name}" for name in ("claim", "claims")},
}
"""Who answers each question: the statistics stand above the tracker, and are found by their names as sinks are."""

_LESSONS = 3  # at a time
_CONSIDERED = 500  # the newest lessons, among which those of the nearest tasks are looked for


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A moment in the history of a store."""

    last_id: int  # of the memories
    time: str  # local, ISO 8601


def store_path(results: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the store: `KODERZ_MEMORY`, else `memory.db` in the results folder, which may be no link.

    Raises KoderzError if it is one, since SQLite would make or change a file elsewhere.
    """
    if named := environ.get("KODERZ_MEMORY"):
        return Path(named).expanduser()
    folder = (
        results
        if results is not None
        else Path(environ.get("KODERZ_RESULTS") or "benchmark_results")
    )
    return refuse_linked_database(folder / "memory.db")


class Opening(AbstractAsyncContextManager["Cortex"]):
    """A store that is opened by `async with`. Whoever takes it for the store is told so."""

    HOW = "the store isn't open yet: write `async with open_cortex() as cortex:`, and use cortex within it"

    def __init__(self, opened: AbstractAsyncContextManager[Cortex]) -> None:
        self._opened = opened

    async def __aenter__(self) -> Cortex:
        return await self._opened.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._opened.__aexit__(*raised)

    def __await__(self) -> Any:
        raise TypeError(self.HOW)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name}: {self.HOW}")


def open_cortex(
    path: Path | str | None = None,
    *,
    create: bool = True,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    embeddings: str | None = None,
) -> Opening:
    """Opens the memory store at `path`, by default this folder's, for `async with open_cortex() as cortex:`.

    A missing file is made, unless `create` is False. Entering raises StoreDown if it can't be opened. `progress` is
    told of the memories that are taken over from a store of an older version. `embeddings` names what makes vectors
    for `recall`, by default as `KODERZ_EMBEDDINGS` does: `none`, or a server's address#MODEL; without either, the
    extra `koderz[recall]` if it is installed.
    """
    named = embeddings or environ.get("KODERZ_EMBEDDINGS")
    return Opening(
        _opened(path, create=create, environ=environ, progress=progress, embeddings=named)
    )


@asynccontextmanager
async def _opened(
    path: Path | str | None,
    *,
    create: bool,
    environ: Mapping[str, str],
    progress: Progress | None,
    embeddings: str | None,
) -> AsyncIterator[Cortex]:
    where = Path(path) if path is not None else store_path(environ=environ)
    thread = ThreadPoolExecutor(1, thread_name_prefix="koderz-memory")
    loop = asyncio.get_running_loop()
    try:
        opening = partial(
            Store, where, create=create, scrubber=Scrubber(environ), progress=progress
        )
        store = await loop.run_in_executor(thread, opening)
        try:
            yield Cortex(store, thread, Vectors(embeddings))
        finally:
            await loop.run_in_executor(thread, store.close)
    finally:
        thread.shutdown(wait=False)


def _threaded(
    work: Callable[Concatenate[Cortex, P], T],
) -> Callable[Concatenate[Cortex, P], Coroutine[Any, Any, T]]:
    """The method as a coroutine that runs on the store's thread."""

    @wraps(work)
    async def done(self: Cortex, /, *args: P.args, **kwargs: P.kwargs) -> T:
        within = copy_context()  # which has the transport that a test puts in place of connections
        called = partial(within.run, partial(work, self, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._thread, called)

    return done


class Cortex:
    """An open store. Times are local, ISO 8601; every method is a coroutine and may raise StoreDown."""

    def __init__(self, store: Store, thread: ThreadPoolExecutor, vectors: Vectors) -> None:
        self._store, self._thread, self._vectors = store, thread, vectors

    @property
    def path(self) -> Path:
        return self._store.path

    @property
    def trouble(self) -> str | None:
        """The reason why the last recall compared words alone, where vectors were meant to be."""
        return self._vectors.trouble

    @_threaded
    def remember(
        self,
        title: str,
        content: str,
        *,
        category: str = "note",
        type: str = "long_term",
        project: str | None = None,
        tags: Sequence[str] = (),
        importance: str = "normal",
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Stores a memory and returns it. If its `key` is known, the memory with that key is updated instead.

        Nothing is cut, merged or dropped; secrets are taken out. Raises InvalidMemory for what doesn't fit.
        """
        if key is not None and key.startswith(PREFIX):
            raise InvalidMemory(f"the key {key} is of a claim, and claims are never changed")
        draft = Draft(
            title=title,
            content=content,
            category=category,
            type=type,
            tags=tags,
            importance=importance,
            metadata=metadata or {},
            project=project,
            key=key,
        )
        (id,) = self._store.remember([draft])
        memory = self._store.get(id)
        assert memory is not None, "it was stored a moment ago"
        return memory.as_dict()

    @_threaded
    def recall(
        self,
        query: str | None = None,
        *,
        category: str | None = None,
        type: str | None = None,
        project: str | None = None,
        tags: Sequence[str] = (),
        limit: int = 10,
        include_decayed: bool = True,
        include_global: bool = True,
        mode: str = "search",
        suite: str | None = None,
        task: str | None = None,
        model: str | None = None,
        arm: str | None = None,
        solver: str | None = None,
        outcome: str | None = None,
        cause: str | None = None,
        run: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        explain: bool = False,
    ) -> list[dict[str, Any]]:
        """The hits that answer a query best, or the recent or important memories, as in exports but with a score.

        A query finds things: a task, a run, or a note. Each is one hit, with the newest of its memories that fit, how
        many did (`tried`), how many `passed`, the id of the `best`, and with `explain` `why` it stands where it does.
        All `tags` and other filters must match; an `outcome` is passed, failed or fault, and `until` leaves out what
        was stored then or later. `include_global`: with a project, also memories that belong to none. `ranking` is
        "newest" where words were so common that only the newest were weighed, and `note` says what was looked for in
        place of a word that nothing holds. Nothing changes by reading but access counts.
        """
        told: dict[str, Any] = {
            "suite": suite,
            "task": task,
            "model": model,
            "arm": arm,
            "solver": solver,
            "outcome": outcome,
        }
        told |= {
            "cause": cause,
            "run": run,
            "since": since,
            "until": until,
            "or_no_project": include_global,
        }
        wanted = _filter(tags, category, type, project, **told)
        choose("mode", mode, MODES)
        if limit < 1:
            raise InvalidMemory(f"limit {limit}: at least 1")
        if query and mode == "search":
            how: Any = {
                "include_decayed": include_decayed,
                "explain": explain,
                "vectors": self._vectors,
            }
            found = search(self._store, query, wanted, limit=limit, **how)
        else:
            found = browse(self._store, wanted, important=mode == "important", limit=limit)
        self._store.touch(each.memory for each in found)
        return [marked(self._store, each.memory, each.as_dict()) for each in found]

    @_threaded
    def get_memory(self, id: int | str) -> dict[str, Any] | None:
        """The memory with this id or key; None if there is none."""
        memory = self._store.get(id)
        if memory is None:
            return None
        self._store.touch([memory])
        return marked(self._store, memory, memory.as_dict(), whole=True)

    @_threaded
    def get_context(
        self, *, project: str | None = None, query: str | None = None, format: str = "summary"
    ) -> str:
        """An introduction to the store's content, as Markdown ("summary", "detailed") or JSON ("raw")."""
        choose("format", format, FORMATS)
        return context(self._store, project, query, format, self._vectors)

    @_threaded
    def export_memories(
        self,
        tags: Sequence[str] = (),
        *,
        category: str | None = None,
        project: str | None = None,
        since: str | datetime | None = None,
        limit: int | None = None,
        after: int | None = None,
    ) -> list[dict[str, Any]]:
        """Every memory that matches, oldest first. All tags must match; there is no limit by default.

        `after`: only those stored after the one of this id.
        """
        wanted = _filter(tags, category, None, project, since=since, after=after)
        return [memory.as_dict() for memory in self._store.select(wanted, limit=limit)]

    @_threaded
    def import_memories(
        self, data: str | bytes | Sequence[Mapping[str, Any]] | Mapping[str, Any]
    ) -> int:
        """Imports an export of ours or Cortex's; returns how many memories were new. Repeating it changes nothing."""
        return len(self._store.add_new(drafts_of(data)))

    @_threaded
    def forget(
        self,
        *,
        id: int | None = None,
        query: str | None = None,
        category: str | None = None,
        project: str | None = None,
        tags: Sequence[str] = (),
        older_than: float | None = None,
        below_salience: float | None = None,
        dry_run: bool = True,
        everything: bool = False,
    ) -> dict[str, Any]:
        """Forgets the memories that match all arguments. By default a dry run, which only lists them.

        `older_than` are days since it was stored, `below_salience` is 0..1 after decay. Critical memories and
        those of runs and their experiments are never forgotten, but counted as `protected`. Where age and salience
        alone are said and every memory fits, InvalidMemory is raised unless `everything` says that this is meant.
        """
        before = None if older_than is None else moment(datetime.now() - timedelta(days=older_than))
        wanted = _filter(tags, category, None, project, id=id, before=before)
        return maintenance.forget(
            self._store, wanted, query, below_salience, dry_run=dry_run, everything=everything
        )

    @_threaded
    def consolidate(self, *, dry_run: bool = True) -> dict[str, Any]:
        """Merges memories of equal content. By default a dry run, which only lists them.

        Their tags are united and the oldest is kept. Protected memories and those with a key are left alone.
        """
        return maintenance.consolidate(self._store, dry_run=dry_run)

    @_threaded
    def memory_stats(self, project: str | None = None) -> dict[str, Any]:
        """Counts of memories by category, type, importance and project, with the store's file and state."""
        return maintenance.stats(self._store, project)

    @_threaded
    def snapshot(self) -> Snapshot:
        """The present moment of the store, for `recall_lessons`."""
        return Snapshot(self._store.last_id(), now())

    @_threaded
    def recall_lessons(
        self,
        problem_id: str,
        cause: str,
        *,
        same_task: bool,
        simulated: bool = False,
        until: Snapshot | None = None,
        statement: str = "",
    ) -> list[str]:
        """Three distinct lessons of experiments that failed with `cause`, on the same task or on others.

        They are those of the tasks that ask most nearly what `statement` says, one a task, found as `recall` finds
        things; the newest where it says nothing. `until` leaves out what was stored or changed after it, of which
        their order doesn't depend either. A simulated model learns only from its like.
        """
        until = until or Snapshot(2**62, "9999")
        which = (
            cause,
            until.last_id,
            until.time,
            problem_id,
            int(same_task),
            int(simulated),
            _CONSIDERED,
        )
        newest = [as_memory(row) for row in self._store.rows(database.LESSONS, which)]
        found = newest if same_task else by_likeness(newest, statement)
        return list(dict.fromkeys(str(memory.metadata.get("lesson")) for memory in found))[
            :_LESSONS
        ]

    @_threaded
    def ask(self, question: str, *named: Any, **asked: Any) -> dict[str, Any]:
        """The answer to one of `QUESTIONS`, as JSON: a sentence, rows and notes.

        Arguments and errors are those of the functions of `koderz.analysis.questions` and `koderz.analysis.claims`.
        """
        answer = find("question", question, QUESTIONS, "koderz.questions")(
            self._store, *named, **asked
        )
        document: dict[str, Any] = answer.document()
        return document

    find = partialmethod(ask, "find")
    best = partialmethod(ask, "best")
    hardest = partialmethod(ask, "hardest")
    tried = partialmethod(ask, "tried")
    compare = partialmethod(ask, "compare")
    lessons = partialmethod(ask, "lessons")
    claim = partialmethod(ask, "claim")
    claims = partialmethod(ask, "claims")

    @_threaded
    def start_session(self, project: str | None = None) -> dict[str, Any]:
        """Begins a session of work: returns its id, and the context to begin with."""
        id = self._store.run(database.START_SESSION, (project, now()))
        return {
            "session_id": id,
            "project": project,
            "context": context(self._store, project, None, "summary"),
        }

    @_threaded
    def end_session(self, session_id: int, summary: str | None = None) -> dict[str, Any]:
        """Ends a session and stores its summary as a memory. Raises InvalidMemory if there is no such session."""
        rows = self._store.rows(database.SESSION, (session_id,))
        if not rows:
            raise InvalidMemory(f"there is no session {session_id}")
        ((project, started),) = rows
        ended = now()
        remembered = None
        if summary:
            draft = Draft(
                title=f"Session {session_id}",
                content=summary,
                category="context",
                type="episodic",
                project=project,
                key=f"session:{session_id}",
                metadata={"started_at": started, "ended_at": ended},
            )
            (remembered,) = self._store.remember([draft])
        self._store.run(database.END_SESSION, (ended, summary, session_id))
        return {
            "session_id": session_id,
            "started_at": started,
            "ended_at": ended,
            "memory_id": remembered,
        }


OUTCOMES = ("passed", "failed", "fault")


def _filter(
    tags: Sequence[str],
    category: str | None,
    type: str | None,
    project: str | None,
    *,
    run: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    **more: Any,
) -> Filter:
    if isinstance(tags, str):
        raise InvalidMemory("tags are a list of words")
    for name, value, among in (("category", category, CATEGORIES), ("type", type, TYPES)):
        if value is not None:
            choose(name, value, among)
    if more.get("outcome") is not None:
        choose("outcome", more["outcome"], OUTCOMES)
    times = {"since": since, "before": until}
    known = {name: moment(time, name) for name, time in times.items() if time is not None} | more
    tagged = (*tags, *((run,) if run is not None else ()))
    return Filter(tags=tagged, category=category, type=type, project=project, **known)


FORMATS = ("summary", "detailed", "raw")

_LOOKED_AT = 2000  # the newest memories, among which the important ones are looked for
_IMPORTANT, _RECENT, _ANSWERS = 5, 10, 5
_GLIMPSE = 240  # characters of a content in a summary


def browse(store: Store, wanted: Filter, *, important: bool, limit: int) -> list[SearchHit]:
    """The newest memories, or the most salient among the newest 2,000."""
    newest = store.select(wanted, limit=_LOOKED_AT if important else limit, newest_first=True)
    if important:
        return ranked(
            ((memory, 1.0) for memory in newest),
            limit,
            "newest" if len(newest) == _LOOKED_AT else "full",
        )
    return [SearchHit(memory, memory.salience, "full") for memory in newest]


def context(
    store: Store, project: str | None, query: str | None, form: str, vectors: Vectors | None = None
) -> str:
    """Important and recent memories of a project, and the answers to a query, each once."""
    wanted = Filter(project=project, or_no_project=True)
    sections = {
        "Important": browse(store, wanted, important=True, limit=_IMPORTANT),
        "Recent": browse(store, wanted, important=False, limit=_RECENT),
    }
    if query:
        sections = {
            f"On: {query}": search(store, query, wanted, limit=_ANSWERS, vectors=vectors),
            **sections,
        }
    shown: set[int] = set()
    distinct: dict[str, list[Memory]] = {}
    for title, found in sections.items():
        distinct[title] = [each.memory for each in found if each.memory.id not in shown]
        shown.update(each.memory.id for each in found)
    if form == "raw":
        return orjson.dumps(
            {title: [m.as_dict() for m in memories] for title, memories in distinct.items()}
        ).decode()
    whole = form == "detailed"
    parts = [
        f"## {title}\n" + "\n".join(_line(memory, whole) for memory in memories)
        for title, memories in distinct.items()
        if memories
    ]
    return "\n\n".join(parts) or "Nothing is remembered yet."


def _line(memory: Memory, whole: bool) -> str:
    content = (
        memory.content.strip() if whole else " ".join(lesson_of(memory.as_dict()).split("\n")[1:])
    )
    if not whole and content != " ".join(memory.content.split()):
        content = f"{content[:_GLIMPSE].rstrip('…')}… (get_memory {memory.id} has it whole)"
    return f"- **{memory.title}** ({memory.category}, {memory.importance}): {content}"
