"""Overviews of the store that need no query: recent memories, important ones, and a session's first context."""

from __future__ import annotations

import orjson

from tracker.memory.memories import Memory
from tracker.memory.search import Found, ranked, search
from tracker.memory.store import Filter, Store

FORMATS = ("summary", "detailed", "raw")

_LOOKED_AT = 2000  # the newest memories, among which the important ones are looked for
_IMPORTANT, _RECENT, _ANSWERS = 5, 10, 5
_GLIMPSE = 240  # characters of a content in a summary


def browse(store: Store, wanted: Filter, *, important: bool, limit: int) -> list[Found]:
    """The newest memories, or the most salient among the newest 2,000."""
    newest = store.select(wanted, limit=_LOOKED_AT if important else limit, newest_first=True)
    if important:
        return ranked(((memory, 1.0) for memory in newest), limit, "newest" if len(newest) == _LOOKED_AT else "full")
    return [Found(memory, memory.salience, "full") for memory in newest]


def context(store: Store, project: str | None, query: str | None, form: str) -> str:
    """Important and recent memories of a project, and the answers to a query, each once."""
    wanted = Filter(project=project, or_no_project=True)
    sections = {
        "Important": browse(store, wanted, important=True, limit=_IMPORTANT),
        "Recent": browse(store, wanted, important=False, limit=_RECENT),
    }
    if query:
        sections = {f"On: {query}": search(store, query, wanted, limit=_ANSWERS), **sections}
    told: set[int] = set()
    distinct: dict[str, list[Memory]] = {}
    for title, found in sections.items():
        distinct[title] = [each.memory for each in found if each.memory.id not in told]
        told.update(each.memory.id for each in found)
    if form == "raw":
        return orjson.dumps({title: [m.as_dict() for m in memories] for title, memories in distinct.items()}).decode()
    return _markdown(distinct, whole=form == "detailed")


def _markdown(sections: dict[str, list[Memory]], *, whole: bool) -> str:
    parts = [
        f"## {title}\n" + "\n".join(_line(memory, whole) for memory in memories)
        for title, memories in sections.items()
        if memories
    ]
    return "\n\n".join(parts) or "Nothing is remembered yet."


def _line(memory: Memory, whole: bool) -> str:
    content = " ".join(memory.content.split()) if not whole else memory.content.strip()
    if not whole and len(content) > _GLIMPSE:
        content = f"{content[:_GLIMPSE]}… (get_memory {memory.id} has it whole)"
    return f"- **{memory.title}** ({memory.category}, {memory.importance}): {content}"
