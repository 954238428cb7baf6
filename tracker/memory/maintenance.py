"""Operations on the whole store: forgetting, merging duplicates, counting, rebuilding."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from koderz_tracker.memory import database
from koderz_tracker.memory.database import StoreDamaged, StoreDown
from koderz_tracker.memory.memories import InvalidMemory, Memory, as_memory, draft_of
from koderz_tracker.memory.search import decayed_salience, folded, holds, words_of
from koderz_tracker.memory.store import Filter, Store
from koderz_tracker.scrubber import Scrubber

_SHOWN = 50  # of the memories that would be forgotten


def forget(
    store: Store,
    wanted: Filter,
    query: str | None,
    below_salience: float | None,
    *,
    dry_run: bool,
    everything: bool = False,
) -> dict[str, Any]:
    """Forgets the memories that match, hold all words of the query and have faded; in a dry run lists them.

    Raises InvalidMemory where nothing says which, and where it is `everything` that may be forgotten, unasked.
    """
    if wanted == Filter() and query is None and below_salience is None:
        raise InvalidMemory(
            "say what to forget: an id, a query, tags, a category, a project, an age or a salience"
        )
    meant = store.select(wanted)
    if below_salience is not None:
        today = datetime.now()
        meant = [memory for memory in meant if decayed_salience(memory, today) < below_salience]
    if query is not None:
        words = words_of(query)
        meant = [memory for memory in meant if words and _holds_all(memory, words)]
    free = [memory for memory in meant if not memory.is_protected]
    is_everything = query is None and _is_everything(store, wanted, free)
    if is_everything and not dry_run and not everything:
        raise InvalidMemory(
            f"these are all {len(free)} memories that may be forgotten; if that is meant, say so: confirmAll, or --all"
        )
    if not dry_run:
        store.delete(free)
    return {
        "dry_run": dry_run,
        "forgotten": 0 if dry_run else len(free),
        "would_forget": len(free),
        "protected": len(meant) - len(free),
        "everything": is_everything,
        "memories": [
            {"id": m.id, "title": m.title, "category": m.category} for m in islice(free, _SHOWN)
        ],
    }


def _is_everything(store: Store, wanted: Filter, free: Sequence[Memory]) -> bool:
    """Whether these are all memories that may be forgotten, although only age and salience select them."""
    if len(free) < 2 or replace(wanted, since=None, before=None) != Filter():
        return False
    return len(free) == sum(not memory.is_protected for memory in store.select(Filter()))


def consolidate(store: Store, *, dry_run: bool) -> dict[str, Any]:
    """Merges memories of equal content and tidies the text index; in a dry run lists them."""
    groups = []
    for (ids,) in store.rows(database.DUPLICATES):
        alike = [memory for id in sorted(map(int, ids.split(","))) if (memory := store.get(id))]
        group = [memory for memory in alike if not memory.is_protected]
        if len(group) > 1:
            groups.append(group)
    if not dry_run:
        for first, *others in groups:
            tags = dict.fromkeys(tag for memory in (first, *others) for tag in memory.tags)
            store.replace(first, others, list(tags))
        store.run(database.OPTIMIZE_TEXT)
    merged = [
        {"kept": first.id, "title": first.title, "merged": [m.id for m in others]}
        for first, *others in groups
    ]
    return {
        "dry_run": dry_run,
        "groups": merged,
        "merged": 0 if dry_run else sum(len(g) - 1 for g in groups),
    }


def stats(store: Store, project: str | None = None) -> dict[str, Any]:
    """Counts of memories by category, type, importance and project; tags are counted for the whole store.

    Where nobody may write, tags of the very newest memories, at most 256, aren't counted yet.
    """
    store.index_newest()
    total, oldest, newest, salience = store.rows(database.TOTALS, (project,))[0]
    counts = {
        f"by_{column}": dict(store.rows(database.COUNTS.format(column=column), (project,)))
        for column in ("category", "type", "importance", "project")
    }
    counts["by_project"] = {name or "": n for name, n in counts["by_project"].items()}
    return {
        "path": str(store.path),
        "bytes": sum(path.stat().st_size for path in _files(store.path)),
        "schema": len(database.MIGRATIONS),
        "total": total,
        **counts,
        "average_salience": round(salience, 4) if salience is not None else None,
        "tags": store.rows(database.TAG_TOTAL)[0][0],
        "common_tags": dict(store.rows(database.COMMON_TAGS)),
        "oldest": oldest,
        "newest": newest,
    }


def rebuild(path: Path, environ: Mapping[str, str]) -> Path | None:
    """Rebuilds a damaged store with every memory that can still be read; returns where the original went.

    None where there is nothing to mend. The file is renamed, never deleted. What the journals hold comes back
    from them. Raises StoreDown where the file is locked or can't be written.
    """
    if not path.exists():
        return None
    with suppress(StoreDamaged), Store(path, create=False, scrubber=Scrubber(environ)) as store:
        if store.check() == "ok":
            return None
    aside = path.with_name(f"{path.name}.corrupt-{datetime.now():%Y%m%d_%H%M%S}")
    try:
        for file in _files(path):
            file.rename(aside.with_name(file.name.replace(path.name, aside.name, 1)))
    except OSError as error:
        raise StoreDown(
            f"the damaged memory store {path} can't be put aside ({error.strerror})"
        ) from None
    with Store(path, scrubber=Scrubber(environ)) as fresh:
        readable = [draft_of(memory) for memory in _readable(aside)]
        for start in range(0, len(readable), 1000):
            fresh.add_new(readable[start : start + 1000])
    return aside


def _holds_all(memory: Memory, words: Sequence[str]) -> bool:
    text = folded(f"{memory.title}\n{' '.join(memory.tags)}\n{memory.content}")
    return all(holds(text, word) for word in words)


def _files(path: Path) -> list[Path]:
    """The database file and the files that SQLite keeps beside it."""
    return [
        file
        for suffix in ("", "-wal", "-shm")
        if (file := path.with_name(path.name + suffix)).exists()
    ]


def _readable(path: Path) -> list[Memory]:
    """The memories that can be read from the start or from the end of a damaged file."""
    found: dict[int, Memory] = {}
    for direction in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            try:
                for row in connection.execute(
                    database.select(0, "", newest_first=direction == "DESC"), (-1,)
                ):
                    with suppress(StoreDamaged):
                        memory = as_memory(row)
                        found[memory.id] = memory
            finally:
                connection.close()
    return [found[id] for id in sorted(found)]
