"""A model at work in a session, and the models that its code calls; the same at every depth."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.prompts import Prompts
from koderz.solvers.definition import AskHandle, OnceHandle
from koderz.systems.long_context.wasm.cells import CellResult, SubCall
from koderz.types import Message, Reply
from koderz_tracker.messages import text_of

if TYPE_CHECKING:
    from koderz.systems.long_context.wasm.opening import AnySession, Sessions


CHARS_A_TOKEN = 3  # on the careful side, so that what is said to fit does
FULL = 0.85  # of the window: a history beyond it is condensed
PATIENCE = 4.0  # deadlines that a cell may take in a replay, where it once came to its end
_LEAST_SHOWN = 500  # characters of what a block printed
PROTOCOL = 2
"""The rules by which replies are read. In 1 an answer ends at its balanced parenthesis, and some mistakes aren't told.

The record of a session says which, so that a replay reads replies as its run did.
"""
_FENCED = (
    "FINAL and FINAL_VAR inside a block aren't read. "
    "To end, write them outside of any block, on a line of their own."
)
_UNTOUCHED = (
    "FINAL_VAR: `answer` is as it was at the start, so there is no answer in it. Name a variable that you have set, or "
    "give the answer itself with FINAL(...)."
)
_AT_FIRST = str({"content": "", "ready": False})  # `answer`, as each session begins


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an experiment, in seconds, US dollars and tokens."""

    max_depth: int
    max_turns: int
    max_errors: int | None
    task_timeout: float | None
    max_cost: float | None
    cell_timeout: float
    window: int  # that a conversation may come to
    reply: int  # that is left for the reply in it

    @property
    def room(self) -> int:
        """The characters that fit into a prompt."""
        return (self.window - min(self.reply, self.window // 2)) * CHARS_A_TOKEN


@dataclass(frozen=True, slots=True)
class Level:
    """The position of a model in the recursion."""

    depth: int = 0
    parent: int | None = None  # the call whose cell asked for it
    path: str = ""  # empty for the root; the same in every replay

    @property
    def purpose(self) -> str:
        return "child" if self.depth else "root"


@dataclass(slots=True)
class RecursionContext:
    """One model's conversation, and the state of its code."""

    level: Level
    session: AnySession
    first: tuple[Message, ...]
    protocol: int = PROTOCOL
    messages: list[Message] = field(default_factory=list)  # after the first
    call: int | None = None  # the last one of its own
    cells: int = 0
    errors: int = 0  # cells in a row that failed
    answer: str | None = None

    @property
    def conversation(self) -> list[Message]:
        return [*self.first, *self.messages]


class Recursion:
    """The state that all levels of one experiment share."""

    def __init__(
        self,
        ask: AskHandle,
        once: OnceHandle,
        sessions: Sessions,
        prompts: Prompts,
        limits: Limits,
        *,
        sub: str | None,
        at_once: int,
    ) -> None:
        """`sub`: the role that answers sub-calls, None for the model itself; `at_once`: sub-calls in flight."""
        self.notes: list[str] = []
        self._ask, self._once, self._sessions, self._prompts = ask, once, sessions, prompts
        self._limits, self._helper = limits, sub
        self._in_flight = asyncio.Semaphore(at_once)
        self._began = time.monotonic()
        self._spent = 0.0
        self._dearest = 0.0

    async def answered(self, context: str, question: str, level: Level) -> str:
        """The answer of the model at this level, found in a session of its own. Raises Fault.

        The `question` is empty where the context is all that is asked.
        """
        own = await self._sessions.open()
        try:
            protocol = await self._begun(own, context, level)
            work = RecursionContext(
                level, own, self._first_messages(len(context), question, level), protocol
            )
            for turn in range(1, self._limits.max_turns + 1):
                if limit := await self._limit(work, turn):
                    self.notes.append(f"{level.path or 'root'}: {limit}")
                    break
                await self._condensed(work)
                if not self._fits(work.conversation):
                    self.notes.append(f"{level.path or 'root'}: no room for another turn")
                    break
                await self._turn(work, turn)
                if work.answer is not None:
                    return work.answer
            return await self._last_words(work)
        finally:
            await own.close()

    async def _begun(self, own: AnySession, context: str, level: Level) -> int:
        """Puts the context into a new session, also in a replay, which waits for it as for a cell.

        Returns the protocol that replies follow.
        """

        async def begin() -> dict[str, Any]:
            await own.put("context", context)
            return {
                "container": self._sessions.container,
                "image": self._sessions.image,
                "protocol": PROTOCOL,
            }

        before = await self._once(f"session {level.path}", begin, rerun=True)
        if before["container"] != self._sessions.container:
            self.notes.append(f"{level.path or 'root'}: code ran in {before['container']} before")
        return int(before.get("protocol", 1))

    # A turn

    async def _turn(self, work: RecursionContext, turn: int) -> None:
        reply = await self._called(
            work.conversation, work.level, self._role(work.level), work.level.purpose
        )
        work.call = reply.call
        said = read(reply.text, work.protocol)
        done = [await self._cell(work, code) for code in said.blocks]
        room = min(SHOWN, max(_LEAST_SHOWN, self._limits.room // (4 * max(1, len(done)))))
        parts = [output_text(done, room)] if done else []
        if said.is_open:
            parts.append(self._prompts.render("rlm-open-block"))
        if work.protocol > 1 and _has_fenced_final(reply.text):
            parts.append(_FENCED)
        ready = [cell["final_answer"] for cell in done if cell["final_answer"] is not None]
        if ready:
            work.answer = ready[0]
        elif said.final is not None:
            work.answer = said.final
        elif said.final_variable is not None:
            found = await self._variable(work, said.final_variable)
            if work.protocol > 1 and said.final_variable == "answer" and found == _AT_FIRST:
                parts.append(_UNTOUCHED)
            elif found is not None:
                work.answer = found
            else:
                parts.append(
                    self._prompts.render("rlm-unknown-variable", variable=said.final_variable)
                )
        elif not done:
            parts.append(self._prompts.render("rlm-no-code"))
        parts.append(f"Turn {turn + 1}/{self._limits.max_turns}")
        work.messages += [
            {"role": "assistant", "content": reply.text or "(an empty reply)"},
            {"role": "user", "content": "\n\n".join(parts)},
        ]

    async def _cell(self, work: RecursionContext, code: str) -> Mapping[str, Any]:
        """Runs a cell and records it. A replay runs it again, since it changes the session."""
        work.cells += 1
        number, calls = work.cells, 0

        async def answer(call: SubCall) -> Sequence[str]:
            nonlocal calls
            calls += 1
            return await self._answer(call, work, f"{number}.{calls}")

        async def run() -> dict[str, Any]:
            found = await work.session.run(code, answer, timeout=self._limits.cell_timeout)
            return _recorded(code, found, self._sessions.container)

        async def again(before: Mapping[str, Any]) -> dict[str, Any] | None:
            if not before["stopped"]:
                found = await work.session.run(
                    code, answer, timeout=PATIENCE * self._limits.cell_timeout
                )
                if _digest(found) != before["digest"]:
                    self.notes.append(f"{name} came to something else when it ran again")
                return _recorded(code, found, self._sessions.container)
            if before["calls"]:
                await work.session.run(code, answer, only_calls=before["calls"])
            return None

        name = f"cell {work.level.path}{number}"
        value: Mapping[str, Any] = await self._once(name, run, rerun=again)
        work.errors = work.errors + 1 if value["error"] else 0
        return value

    async def _variable(self, work: RecursionContext, name: str) -> str | None:
        key = f"variable {work.level.path}{work.cells}"
        value: str | None = await self._once(key, lambda: work.session.get(name), rerun=True)
        return value

    # What code asks

    async def _answer(self, call: SubCall, work: RecursionContext, where: str) -> Sequence[str]:
        """A text for each prompt, in order; the calls run at the same time as far as allowed."""
        level = Level(work.level.depth + 1, work.call)
        answers = [
            asyncio.ensure_future(
                self._sub(call.name, prompt, replace(level, path=f"{work.level.path}{where}.{n}/"))
            )
            for n, prompt in enumerate(call.prompts, 1)
        ]
        try:
            return await asyncio.gather(*answers)
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def _sub(self, name: str, prompt: str, level: Level) -> str:
        if not self._limits.max_depth:
            return "Error: sub-calls are switched off (depth 0)"
        if name == "rlm_query" and level.depth < self._limits.max_depth:
            return await self.answered(prompt, "", level)
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if not self._fits(messages):
            most = self._limits.room
            return f"Error: the prompt has {len(prompt):,} characters, and at most {most:,} fit; send less of it"
        if not self._is_affordable():
            return "Error: the cost limit of this task leaves no room for another call"
        return (await self._called(messages, level, self._helper, "sub")).text

    async def _called(
        self, messages: Sequence[Message], level: Level, model: str | None, purpose: str
    ) -> Reply:
        """Makes a call; calls by code occupy one of the slots while in flight."""
        if not level.depth:
            reply = await self._ask(messages, model, purpose)
        else:
            async with self._in_flight:
                reply = await self._ask(
                    messages, model, purpose, depth=level.depth, parent=level.parent
                )
        self._spent += reply.cost
        self._dearest = max(self._dearest, reply.cost)
        return reply

    # Limits

    async def _limit(self, work: RecursionContext, turn: int) -> str:
        """The limit that is reached, or empty."""
        limits = self._limits
        if limits.max_errors is not None and work.errors >= limits.max_errors:
            return f"{work.errors} cells in a row failed"
        if not self._is_affordable():
            return f"the cost limit of ${limits.max_cost:g} is nearly reached"
        if (
            limits.task_timeout is not None
            and await self._elapsed(work, turn) >= limits.task_timeout
        ):
            return f"the time limit of {limits.task_timeout:g} s is reached"
        return ""

    async def _elapsed(self, work: RecursionContext, turn: int) -> float:
        """The recorded seconds since the experiment began, so that a replay stops where the first run did."""
        now = round(time.monotonic() - self._began, 3)
        value = float(await self._once(f"clock {work.level.path}{turn}", lambda: now))
        self._began = min(self._began, time.monotonic() - value)
        return value

    def _is_affordable(self) -> bool:
        """Whether two calls as dear as the dearest so far still fit: the next one, and one for the answer."""
        cap = self._limits.max_cost
        return cap is None or self._spent + 2 * self._dearest <= cap

    def _fits(self, messages: Sequence[Message]) -> bool:
        return _size(messages) <= self._limits.room

    async def _condensed(self, work: RecursionContext) -> None:
        """Replaces a history that nearly fills the window by a summary; the session keeps the whole."""
        if not work.messages or _size(work.conversation) <= FULL * self._limits.room:
            return
        history = "\n\n".join(f"{one['role']}: {text_of(one)}" for one in work.messages)
        asked = self._prompts.render("rlm-condense")
        recent = work.messages
        while recent and not self._fits([*work.first, *recent, {"role": "user", "content": asked}]):
            recent = recent[2:]  # the oldest turn
        messages = [*work.first, *recent[:-1], {"role": "user", "content": asked}]
        reply = await self._called(messages, work.level, self._role(work.level), "condense")
        await self._once(
            f"history {work.level.path}{work.cells}",
            lambda: work.session.put("history", history),
            rerun=True,
        )
        last = text_of(work.messages[-1])
        work.messages = [
            {"role": "assistant", "content": reply.text or "(an empty reply)"},
            {
                "role": "user",
                "content": self._prompts.render(
                    "rlm-condensed", last=cut(last, self._limits.room // 4)
                ),
            },
        ]

    async def _last_words(self, work: RecursionContext) -> str:
        """The final answer of a model that has reached a limit: one plain call, if there is room for it."""
        asked: Message = {"role": "user", "content": self._prompts.render("rlm-final")}
        messages = [*work.conversation, asked]
        while work.messages and not self._fits(messages):
            work.messages = work.messages[2:]
            messages = [*work.conversation, asked]
        cap = self._limits.max_cost
        if not self._fits(messages) or (cap is not None and self._spent + self._dearest > cap):
            return ""
        if work.level.depth:
            return _plain(
                (await self._called(messages, work.level, self._helper, "child")).text,
                work.protocol,
            )
        return _plain(
            (await self._ask(messages, None, "final", parent=work.call)).text, work.protocol
        )

    # Who is asked, and what it is told first

    def _role(self, level: Level) -> str | None:
        return self._helper if level.depth else None

    def _first_messages(self, length: int, question: str, level: Level) -> tuple[Message, ...]:
        size = f"{length:,}"
        may = self._limits.max_depth - level.depth
        queries = self._prompts.render(
            "rlm-no-queries" if not may else "rlm-queries", room=f"{self._limits.room:,}"
        )
        system = self._prompts.render("rlm-system", queries=queries)
        asked = self._prompts.render(
            "rlm-question" if question else "rlm-child", question=question, size=size
        )
        begin = self._prompts.render("rlm-first-turn", turns=str(self._limits.max_turns))
        return {"role": "system", "content": system}, {
            "role": "user",
            "content": f"{asked}\n\n{begin}",
        }


def _plain(text: str, protocol: int) -> str:
    """The last reply, without the markup of a final answer."""
    turn = read(text, protocol)
    return text.strip() if turn.final is None else turn.final


def _size(messages: Sequence[Message]) -> int:
    return sum(len(text_of(message)) for message in messages)


def _digest(found: CellResult) -> str:
    return hashlib.sha256(
        f"{found.stdout}\0{found.error}".encode("utf-8", "backslashreplace")
    ).hexdigest()[:16]


def _recorded(code: str, found: CellResult, container: str) -> dict[str, Any]:
    """The journal's record of a cell: its output as far as a model may ever see it."""
    output = "\n".join(part.rstrip("\n") for part in (found.stdout, found.stderr) if part.strip())
    if found.truncated:
        output += "\n(it printed more than 1 MB, which is cut)"
    return {
        "code": code,
        "output": cut(output),
        "error": found.error,
        "seconds": found.seconds,
        "container": container,
        "variables": [*found.locals],
        "final_answer": found.final_answer,
        "calls": found.calls,
        "stopped": found.stopped,
        "digest": _digest(found),
    }


SHOWN = 20_000  # characters of what one block printed

_OPENS = re.compile(r"^\s*(`{3,})\s*(\w*)")
_FINAL = re.compile(r"^[ \t]*FINAL(_VAR)?\(", re.MULTILINE)


class ParsedReply(NamedTuple):
    """A parsed reply."""

    blocks: tuple[str, ...]  # of code that is to run
    is_open: bool  # the last block has no closing fence
    final: str | None  # the answer that stands outside of all fences
    final_variable: str | None  # or the variable that holds it


def read(reply: str, protocol: int = PROTOCOL) -> ParsedReply:
    """The blocks and the final answer of a reply. Text in a fence is never a final answer."""
    blocks: list[str] = []
    outside: list[str] = []
    code: list[str] = []
    fence, runs = "", False
    for line in reply.split("\n"):
        opening = _OPENS.match(line)
        if fence:
            if line.strip() == fence:
                blocks += ["\n".join(code)] if runs else []
                fence = ""
            else:
                code.append(line)
        elif opening:
            fence, runs, code = opening[1], opening[2].lower() == "repl", []
        else:
            outside.append(line)
    is_open = bool(fence) and runs
    if is_open:
        blocks.append("\n".join(code))
    text = "\n".join(outside)
    found = _FINAL.search(text)
    if not found:
        final, variable = None, None
    else:
        rest = text[found.end() :]
        if found[1]:
            final, variable = None, _closed(rest, by_line=False).strip("\"' \t\n")
        else:
            final, variable = _closed(rest, by_line=protocol > 1).strip(), None
    return ParsedReply(
        tuple(block.strip() for block in blocks if block.strip()), is_open, final, variable
    )


def output_text(cells: Sequence[Mapping[str, Any]], room: int = SHOWN) -> str:
    """The output of a reply's blocks as the model sees it: at most `room` characters of each."""
    if len(cells) == 1:
        return _block("REPL output:", cells[0], room)
    return "\n\n".join(
        _block(f"REPL output (block {n}):", cell, room) for n, cell in enumerate(cells, 1)
    )


def cut(text: str, room: int = SHOWN) -> str:
    """The text, or its beginning with the number of characters left out."""
    return text if len(text) <= room else f"{text[:room]}... + [{len(text) - room} chars...]"


def _block(heading: str, cell: Mapping[str, Any], room: int) -> str:
    text = cut(cell["output"], room)
    if cell["variables"]:
        text = f"{text}\n\nREPL variables: {cell['variables']}".strip()
    return f"{heading}\n{text or 'No output'}"


def _has_fenced_final(reply: str) -> bool:
    """Whether a line in a fence ends the work, as the model may think."""
    fence = ""
    for line in reply.split("\n"):
        opening = _OPENS.match(line)
        if fence and line.strip() == fence:
            fence = ""
        elif fence and _FINAL.match(line):
            return True
        elif not fence and opening:
            fence = opening[1]
    return False


def _closed(text: str, *, by_line: bool) -> str:
    """The text before the parenthesis that closes; all of it if none does.

    With `by_line` that is the last one of its line which closes none opened before it: `1) one 2) two)` is one answer.
    """
    depth, end = 0, None
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0 and letter == ")":
            end, depth = place, 0
        if end is not None and (letter == "\n" or not by_line):
            break
    return text if end is None else text[:end]
