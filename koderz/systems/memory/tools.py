"""The tools of the MCP server with their arguments, and answers that fit a client.

Each tool is a struct of its arguments. Its JSON Schema, the check of what a client sends, and what the
client is told of a tool all come from it, so that an argument can't be dropped in silence.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import orjson
from msgspec import UNSET, Meta, UnsetType

from koderz_tracker.memory.cortex import Cortex
from koderz_tracker.memory.detail import Detail, shown
from koderz_tracker.memory.memories import Category, Importance, InvalidMemory, Type

USUAL, MOST = 25_000, 2_000_000
"""Characters of an answer: what every client takes, and what one may ask for."""

_MARK = 4  # bytes by which a cursor knows a hit again
_LEFT = 400  # characters of a page for what isn't memories: counts, names, a short cursor
_NOTE = 120  # characters of a note on what was cut


def text_of(answer: Any, most: int = USUAL) -> str:
    """The answer as a client gets it: text as it is, all else as JSON, cut where it would be too long."""
    text = answer if isinstance(answer, str) else orjson.dumps(answer).decode()
    if len(text) <= most:
        return text
    cut: list[str] = []
    if isinstance(answer, str):
        return f"{answer[: most - _NOTE]}\n… (cut after {most - _NOTE:,} of {len(answer):,} characters)"
    told = _within(orjson.loads(text), most - 4 * _NOTE, "answer", cut)
    told = told if isinstance(told, dict) else {"items": told}
    return orjson.dumps({**told, "cut": [part_of(note, 0, _NOTE) for note in cut[:3]]}).decode()


def _within(value: Any, room: int, name: str, cut: list[str]) -> Any:
    """The value with its longest texts and lists cut so that its JSON has at most so many characters."""
    if (size := _size(value)) <= room:
        return value
    cut.append(f"{name}: a part of {size:,} characters; maxCharacters gives more")
    if isinstance(value, dict):
        left, told = room - 2, {}
        pending = sorted(value, key=lambda key: _size(value[key]))
        # the shortest are whole, the others share what is left
        for place, key in enumerate(pending):
            share = left // (len(pending) - place) - _size(key) - 2
            if share < 2:  # of a long name, or of too many
                continue
            told[key] = _within(value[key], share, key, cut)
            left -= _size(key) + _size(told[key]) + 2
        return {key: told[key] for key in value if key in told}
    if isinstance(value, list):
        kept = fitting(value, room + _LEFT - 2)
        return kept if _size(kept) <= room else [_within(kept[0], room - 3, name, cut)]
    return part_of(value, 0, room - 2) if isinstance(value, str) else None


def _size(value: Any) -> int:
    return len(orjson.dumps(value).decode())


def part_of(text: str, offset: int, room: int) -> str:
    """The text from `offset` on, so much of it that its JSON, without quotes, has at most `room` characters."""
    length = max(0, room)
    while (size := _size(text[offset : offset + length]) - 2) > room:
        length = min(length - 1, length * room // size)
    return text[offset : offset + length]


def in_parts(memory: Mapping[str, Any], most: int, offset: int = 0) -> dict[str, Any]:
    """A memory whole or, where it is too long, a part of its content, with where the next begins.

    Where its other fields are too long, too, it is a part of the memory's JSON, named `json`.
    """
    rest, name, text = {**memory, "content": ""}, "content", memory["content"]
    if _size(rest) > most // 2:
        rest, name, text = {"id": memory["id"]}, "json", orjson.dumps(memory).decode()
    if offset > len(text):
        raise InvalidMemory(f"offset {offset}: memory {memory['id']} has {len(text)} characters")
    part = part_of(text, offset, most - _size(rest) - _LEFT)
    answer = {**rest, name: part}
    if len(part) == len(text):
        return answer
    end = offset + len(part)
    more = {"next_offset": end} if end < len(text) else {}
    return answer | {"characters": len(text), "offset": offset, **more}


def page_of(
    memories: Iterable[Mapping[str, Any]], detail: Detail, most: int
) -> list[dict[str, Any]]:
    """The first memories that fit. One too long for any is told by its lesson, and where it is whole."""

    def told(memory: Mapping[str, Any]) -> dict[str, Any]:
        if (size := _size(answer := shown(memory, detail))) > most - _LEFT:
            answer = {
                **shown(memory, "lesson"),
                "characters": size,
                "whole": f"get_memory {memory['id']}",
            }
        return answer

    return fitting(map(told, memories), most)


def fitting(items: Iterable[Any], most: int) -> list[Any]:
    """The first items that fit into an answer, at least one."""
    found: list[Any] = []
    left = most - _LEFT
    for item in items:
        left -= _size(item) + 1
        if left < 0 and found:
            break
        found.append(item)
    return found


def seen_in(cursor: str) -> frozenset[bytes]:
    """The marks of the hits that were shown before this cursor. Raises InvalidMemory."""
    try:
        marks = b64decode(cursor, validate=True)
    except ValueError:
        marks = b"?"
    if len(marks) % _MARK:
        raise InvalidMemory(f"cursor {cursor[:40]!r}: give the one of the answer before, as it is")
    return frozenset(marks[at : at + _MARK] for at in range(0, len(marks), _MARK))


def cursor_after(seen: Iterable[bytes], page: Sequence[Mapping[str, Any]]) -> str:
    """The cursor behind a page: it knows every hit that was shown.

    Ranks change while a run writes, so that neither a place nor a score says where to go on.
    """
    return b64encode(b"".join(sorted({*seen, *map(mark_of, page)}))).decode()


def mark_of(hit: Mapping[str, Any]) -> bytes:
    """The mark by which a cursor knows a hit: of the thing that it is about, else of the memory."""
    return hashlib.blake2b(str(hit.get("thing") or hit["id"]).encode(), digest_size=_MARK).digest()


Query = Annotated[str, Meta(description="Words to look for, in titles, tags and contents.")]
Project = Annotated[str, Meta(description="Only memories of this project.")]
Tags = Annotated[list[str], Meta(description="Only memories that carry all of these.")]
Days = Annotated[
    float, Meta(ge=0, description="Only memories stored longer ago than this, in days.")
]
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # SQLite holds no other
Salience = Annotated[
    float, Meta(ge=0, le=1, description="Only memories whose salience, after decay, is below this.")
]


Shown = Annotated[
    Detail,
    Meta(
        description="line: id, task, arm, model, outcome, score, time in 200 characters. lesson: also what was tried, "
        "why it failed and what made it pass, in 700. full: everything."
    ),
]
Characters = Annotated[int, Meta(ge=1000, le=MOST, description="Characters of the answer at most.")]
Cursor = Annotated[
    str, Meta(description="That of the answer before, to go on behind it, with the same arguments.")
]
# arguments that say how an answer is told
_OF_ANSWER = frozenset({"max_characters", "detail", "cursor", "offset"})
_PAGE = 100  # hits that are counted, and memories of a page, at most


class Tool(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,
    frozen=True,
    rename="camel",
    kw_only=True,
):
    """A tool of the MCP server. The docstring of a subclass is its description for clients."""

    reads_only: ClassVar[bool] = True
    max_characters: Characters = USUAL

    async def call(self, cortex: Cortex) -> Any:
        """The tool's answer as JSON; by default, the result of the store's method with the tool's name."""
        return await getattr(cortex, _snake(type(self).__name__))(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """The arguments that the client has set, except those that say how the answer is told."""
        names = (name for name in self.__struct_fields__ if name not in _OF_ANSWER)
        return {name: value for name in names if (value := getattr(self, name)) is not UNSET}


class Remember(Tool, frozen=True):
    """Store a memory. Nothing is cut, merged or dropped; secrets are taken out. With a key, a memory of the
    same key is brought up to date."""

    reads_only: ClassVar[bool] = False
    title: str
    content: str
    category: Category = "note"
    type: Type = "long_term"
    project: Annotated[str, Meta(description="The project that it belongs to.")] | UnsetType = UNSET
    tags: Annotated[list[str], Meta(description="Words to find it by.")] = []
    importance: Importance = "normal"
    scope: Annotated[
        Literal["project", "global"], Meta(description="global: it belongs to no project.")
    ] = "project"
    transferable: (
        Annotated[bool, Meta(description="Whether it helps in other projects too.")] | UnsetType
    ) = UNSET
    metadata: Annotated[dict[str, Any], Meta(description="Any JSON object.")] = {}
    key: (
        Annotated[
            str, Meta(description="A name of yours for it, by which it can be changed later.")
        ]
        | UnsetType
    ) = UNSET

    async def call(self, cortex: Cortex) -> Any:
        arguments = self.arguments()
        if arguments.pop("scope") == "global":
            arguments.pop("project", None)
        if "transferable" in arguments:
            arguments["metadata"] = {**self.metadata, "transferable": arguments.pop("transferable")}
        return in_parts(await cortex.remember(**arguments), self.max_characters)


class Recall(Tool, frozen=True):
    """Find memories: tasks, runs and notes that a query is about, each once with its newest memory, how often it was
    tried and its best; or the recent or important memories. The answer says how many there are, and its cursor leads
    to the next. Each has a score, and a ranking: newest means that its words are so common
    that only the newest were weighed. get_memory gives one whole."""

    query: Query | UnsetType = UNSET
    category: Category | UnsetType = UNSET
    type: Type | UnsetType = UNSET
    project: Project | UnsetType = UNSET
    tags: Tags = []
    suite: (
        Annotated[str, Meta(description="Only memories of this suite, and likewise:")] | UnsetType
    ) = UNSET
    task: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    arm: str | UnsetType = UNSET
    solver: str | UnsetType = UNSET
    outcome: Literal["passed", "failed", "fault"] | UnsetType = UNSET
    cause: Annotated[str, Meta(description="Of failure, e.g. assertion.")] | UnsetType = UNSET
    run: Annotated[str, Meta(description="The id of a run.")] | UnsetType = UNSET
    since: Annotated[str, Meta(description="Stored then or later; ISO 8601.")] | UnsetType = UNSET
    until: Annotated[str, Meta(description="Stored earlier; ISO 8601.")] | UnsetType = UNSET
    explain: Annotated[bool, Meta(description="Also why each hit stands where it does.")] = False
    limit: Annotated[int, Meta(ge=1, le=1000)] = 10
    include_decayed: Annotated[
        bool, Meta(description="Also memories that have faded with age.")
    ] = True
    include_global: Annotated[
        bool, Meta(description="With a project: also memories that belong to none.")
    ] = True
    mode: Literal["search", "recent", "important"] = "search"
    detail: Shown = "lesson"
    cursor: Cursor | UnsetType = UNSET
    max_characters: Characters = 8000

    async def call(self, cortex: Cortex) -> Any:
        seen = frozenset() if self.cursor is UNSET else seen_in(self.cursor)
        asked = min(1000, len(seen) + max(_PAGE, self.limit + 1))
        found = await cortex.recall(**{**self.arguments(), "limit": asked})
        left = [hit for hit in found if mark_of(hit) not in seen]
        page = page_of(left[: self.limit], self.detail, self.max_characters)
        answer = {
            "found": len(found),
            "counted": "all" if len(found) < asked else "at least",
            "memories": page,
        }
        answer |= {"note": cortex.trouble} if cortex.trouble and not found else {}
        return answer | (
            {"cursor": cursor_after(seen, left[: len(page)])} if len(page) < len(left) else {}
        )


class Forget(Tool, frozen=True):
    """Forget memories that fit everything said. It is a dry run unless dryRun is false and confirm is true, and
    for all memories at once confirmAll, too. Critical memories, runs and their experiments are never forgotten."""

    reads_only: ClassVar[bool] = False
    id: Number | UnsetType = UNSET
    query: (
        Annotated[str, Meta(description="Only memories that hold all of these words.")] | UnsetType
    ) = UNSET
    category: Category | UnsetType = UNSET
    project: Project | UnsetType = UNSET
    tags: Tags = []
    older_than: Days | UnsetType = UNSET
    below_salience: Salience | UnsetType = UNSET
    dry_run: bool = True
    confirm: bool = False
    confirm_all: bool = False

    async def call(self, cortex: Cortex) -> Any:
        arguments = self.arguments()
        is_confirmed = arguments.pop("confirm")
        arguments["everything"] = arguments.pop("confirm_all")
        arguments["dry_run"] = self.dry_run or not is_confirmed
        return await cortex.forget(**arguments)


class GetContext(Tool, frozen=True):
    """Get an introduction before work begins: important and recent memories, and the answers to a query."""

    project: Project | UnsetType = UNSET
    query: Query | UnsetType = UNSET
    format: Literal["summary", "detailed", "raw"] = "summary"
    detail: Annotated[
        Shown, Meta(description="Of a raw context. The others say how much they tell.")
    ] = "lesson"

    async def call(self, cortex: Cortex) -> Any:
        context = await cortex.get_context(**self.arguments())
        if self.format != "raw":
            return context
        sections: dict[str, list[dict[str, Any]]] = orjson.loads(context)
        room = self.max_characters // max(1, len(sections)) - 100
        return {title: page_of(memories, self.detail, room) for title, memories in sections.items()}


class StartSession(Tool, frozen=True):
    """Begin a session of work; answers with its id and the context to begin with."""

    reads_only: ClassVar[bool] = False
    project: Project | UnsetType = UNSET


class EndSession(Tool, frozen=True):
    """End a session; its summary is remembered."""

    reads_only: ClassVar[bool] = False
    session_id: Number
    summary: str | UnsetType = UNSET


class Consolidate(Tool, frozen=True):
    """Merge memories that say exactly the same. It is a dry run unless dryRun is false."""

    reads_only: ClassVar[bool] = False
    force: Annotated[
        bool, Meta(description="Accepted for Cortex' sake; it makes no difference.")
    ] = False
    dry_run: bool = True

    async def call(self, cortex: Cortex) -> Any:
        return await cortex.consolidate(dry_run=self.dry_run)


class MemoryStats(Tool, frozen=True):
    """Count the memories by category, type, importance and project, and give the size of the store."""

    project: Project | UnsetType = UNSET


class GetMemory(Tool, frozen=True):
    """One memory, whole, by its id, or by its key. A long one comes in parts, each with the offset of the next."""

    id: Annotated[Number | str, Meta(description="The number of a memory, or its key.")]
    offset: Annotated[
        int, Meta(ge=0, description="Where the part begins: next_offset of the part before.")
    ] = 0

    async def call(self, cortex: Cortex) -> Any:
        found = await cortex.get_memory(self.id)
        if found is None:
            raise InvalidMemory(f"there is no memory {self.id}")
        return in_parts(found, self.max_characters, self.offset)


class ExportMemories(Tool, frozen=True):
    """Every memory that fits, oldest first, whole: in pages, each with the cursor of the next. One that is longer
    than a page is told by its lesson; get_memory gives it."""

    project: Project | UnsetType = UNSET
    tags: Tags = []
    category: Category | UnsetType = UNSET
    since: Annotated[str, Meta(description="Stored then or later; ISO 8601.")] | UnsetType = UNSET
    limit: Annotated[
        int, Meta(ge=1, description="Memories at most in this answer, of which 100 are the most.")
    ] = 100
    detail: Shown = "full"
    cursor: Cursor | UnsetType = UNSET

    async def call(self, cortex: Cortex) -> Any:
        if self.cursor is not UNSET and not (self.cursor.isascii() and self.cursor.isdecimal()):
            raise InvalidMemory(
                f"cursor {self.cursor[:40]!r}: give the one of the answer before, as it is"
            )
        after = None if self.cursor is UNSET else int(self.cursor[:18])
        limit = min(self.limit, _PAGE)
        found = await cortex.export_memories(
            **{**self.arguments(), "limit": limit + 1, "after": after}
        )
        page = page_of(found[:limit], self.detail, self.max_characters)
        more = {"cursor": str(page[-1]["id"])} if len(page) < len(found) else {}
        return {"memories": page, **more}


class ImportMemories(Tool, frozen=True):
    """Store what an export holds, ours or Cortex's. The same again changes nothing."""

    reads_only: ClassVar[bool] = False
    data: Annotated[str, Meta(description="JSON text: an array of memories.")]

    async def call(self, cortex: Cortex) -> Any:
        return {"imported": await cortex.import_memories(self.data)}


class Asked(Tool, frozen=True, kw_only=True):
    """The experiments that a question is about: those that fit everything that is set."""

    suite: str | UnsetType = UNSET
    task: Annotated[str, Meta(description="The id of one task, e.g. HumanEval/3.")] | UnsetType = (
        UNSET
    )
    model: str | UnsetType = UNSET
    arm: str | UnsetType = UNSET
    solver: str | UnsetType = UNSET
    tags: Tags = []
    since: Annotated[str, Meta(description="Ended then or later; ISO 8601.")] | UnsetType = UNSET
    until: Annotated[str, Meta(description="Ended earlier; ISO 8601.")] | UnsetType = UNSET
    run: (
        Annotated[str, Meta(description="A run's id, its beginning, latest or latest~1.")]
        | UnsetType
    ) = UNSET
    allow_simulated: Annotated[bool, Meta(description="Put simulated models beside real ones.")] = (
        False
    )


Outcome = Annotated[
    str, Meta(description="passed, failed (all that did not pass), timeout, error or fault.")
]
Cause = Annotated[
    str, Meta(description="Why it failed, e.g. assertion; exception is any exception.")
]
Rows = Annotated[int, Meta(ge=1, le=50)]


class Find(Asked, frozen=True):
    """Find experiments by any filter, newest first, or the most telling: with lessons, then failures."""

    outcome: Outcome | UnsetType = UNSET
    cause: Cause | UnsetType = UNSET
    order: Literal["newest", "telling"] = "newest"
    limit: Rows = 10


class Best(Asked, frozen=True):
    """Which arm and model is best on a suite, a task or a tag; ties are said as ties. Rates have n and an interval."""

    by: (
        Annotated[str, Meta(description="success, score, another measure, or cost-per-success.")]
        | UnsetType
    ) = UNSET
    limit: Rows = 10


class Hardest(Asked, frozen=True):
    """Which tasks no arm passes, or this one: how often each was tried, and why it failed."""

    cause: Cause | UnsetType = UNSET
    limit: Rows = 10


class Tried(Asked, frozen=True):
    """Whether a plan was tried before: the nearest earlier arms, what differed, what they gave, and which difference
    their tasks could have shown at all."""

    plan: Annotated[
        str, Meta(description="In words: suites, models, solvers, temperature 0.8.")
    ] = ""
    settings: Annotated[dict[str, str], Meta(description="Settings by name.")] | UnsetType = UNSET
    limit: Rows = 5


class Compare(Asked, frozen=True, kw_only=True):
    """Compare two runs, arms or models, or one run's arms: the verdict in a sentence, with its interval and n."""

    a: Annotated[str, Meta(description="The baseline: a run, a model or an arm.")]
    b: Annotated[str, Meta(description="The candidate.")] | UnsetType = UNSET
    measure: str | UnsetType = UNSET


class Lessons(Asked, frozen=True):
    """Lessons for a task or a cause: what failed and what passed afterwards, as it is shown to models."""

    cause: Cause | UnsetType = UNSET
    limit: Rows = 10


class Claim(Tool, frozen=True):
    """Store a claim: a sentence about one run or two, with what they say and its interval. It is checked again
    whenever they change, and stands, moves or falls. Claims are never changed; a new one supersedes."""

    reads_only: ClassVar[bool] = False
    sentence: str
    runs: Annotated[
        list[str],
        Meta(min_length=1, max_length=2, description="One run, or baseline and candidate."),
    ]
    arm: str | UnsetType = UNSET
    measure: str | UnsetType = UNSET
    supersedes: Annotated[Number | str, Meta(description="The number of a claim.")] | UnsetType = (
        UNSET
    )
    contradicts: Annotated[Number | str, Meta(description="The number of a claim.")] | UnsetType = (
        UNSET
    )
    made_by: str = "an agent over MCP"


class Claims(Tool, frozen=True):
    """List claims as they stand by the evidence of now, newest first, with what it says and why one fell."""

    reads_only: ClassVar[bool] = False  # what has changed meanwhile is stored
    fallen: Annotated[bool, Meta(description="Only those that have fallen.")] = False
    limit: Rows = 20


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def by_name(kinds: Iterable[type[Tool]]) -> dict[str, type[Tool]]:
    return {_snake(kind.__name__): kind for kind in kinds}


_OF_MEMORIES = [kind for kind in Tool.__subclasses__() if kind is not Asked]
TOOLS: Mapping[str, type[Tool]] = by_name((*_OF_MEMORIES, *Asked.__subclasses__()))
"""The tools by name, in the order of their classes, in which clients see them."""


def schema_of(tool: type[Tool]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments; no others are allowed."""
    (_,), definitions = msgspec.json.schema_components([tool])
    (schema,) = definitions.values()
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def described(tool: type[Tool]) -> str:
    """The description of a tool for clients."""
    return " ".join((tool.__doc__ or "").split())


def read_arguments(
    name: str, arguments: Mapping[str, Any] | None, tools: Mapping[str, type[Tool]] = TOOLS
) -> Tool:
    """The arguments of a call. Raises InvalidMemory for an unknown tool or argument, or a wrong type."""
    if name not in tools:
        raise InvalidMemory(f"there is no tool {name}; there are {', '.join(tools)}")
    try:
        return msgspec.convert(dict(arguments or {}), tools[name])
    except msgspec.ValidationError as error:
        raise InvalidMemory(f"{name}: {error}") from None
