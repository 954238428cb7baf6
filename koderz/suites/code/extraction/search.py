"""Which of several blocks answers the task, and the program that it makes."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koderz.suites.code.extraction.entry import offer_of
from koderz.suites.code.extraction.names import FUNCTIONS, executed, statements
from koderz.suites.code.extraction.parsing import Code, Parser
from koderz.suites.code.extraction.program import as_body, blanked, joined, read_context
from koderz.suites.code.extraction.relevance import borrowed, demonstrations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koderz.suites.code.extraction.entry import Offer, Strength
    from koderz.suites.code.extraction.fences import Block
    from koderz.suites.code.extraction.names import Statement

PYTHON = frozenset(
    {"", "py", "python", "python2", "python3", "py3", "ipython", "pycon", "sage", "diff", "patch", "code"}
)


@dataclass(frozen=True, slots=True)
class Program:
    """A whole program; `line_offset` lines of it stand before the reply's own first one."""

    text: str
    line_offset: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A block read as Python."""

    code: Code
    body: Sequence[Statement]
    offer: Offer | None


class Search:
    """Reads blocks, each text once, and finds the program among them."""

    def __init__(self, prompt: str, entry_point: str) -> None:
        self._entry_point = entry_point
        self._parser = Parser()
        self._context = read_context(prompt, entry_point, self._parser)
        self._readings: dict[str, Reading | None] = {}

    def reading(self, block: Block) -> Reading | None:
        """Return the block as Python, or None; a part of it (`code.whole` is false) where its end is no Python."""
        return self._read(block.text, *block.longer)

    def defining(self, blocks: Sequence[Block], strength: Strength) -> Program | None:
        """Return the program of the last block that offers the entry point in that strength."""
        latest_first = [self.reading(block) for block in reversed(blocks)]  # the budget is for the preferred ones
        for index, reading in enumerate(latest_first):
            if reading and reading.offer and reading.offer.strength == strength:
                others = [*latest_first[index + 1 :], *latest_first[:index][::-1]]  # those before it, then those after
                return self._program(reading, reading.offer, [each.code for each in others if each])
        return None

    def completing(self, blocks: Sequence[Block]) -> Program | None:
        """Return the prompt with the last block that is a body for the function at its end."""
        if not self._context.head:
            return None
        for block in reversed(blocks):
            if block.language in PYTHON:
                others = [reading.code for each in blocks if each is not block and (reading := self.reading(each))]
                for text in self._completions(block):
                    reading = self._read(text)
                    if reading and reading.offer and _answers(reading, self._entry_point):
                        return self._program(reading, reading.offer, others, completes=True)
        return None

    def combining(self, blocks: Sequence[Block]) -> Program | None:
        """Return the program of all blocks of Python together, where each holds a part of the function."""
        texts = [block.text for block in blocks if block.language in PYTHON]
        reading = self._read("\n".join(texts)) if len(texts) > 1 else None
        if reading and reading.offer and reading.offer.strength == "defined":
            return self._program(reading, reading.offer, [])
        return None

    def as_it_stands(self, text: str) -> Program:
        """Return a text where the program would be: one that is no Python, or that only running tells more of."""
        program, offset = joined([self._context.text], text, "", self._parser)
        return Program(program, offset)

    def _read(self, *texts: str) -> Reading | None:
        key = texts[0]
        if key not in self._readings:
            code = self._parser.read(texts, self._entry_point)
            self._readings[key] = self._reading_of(code) if code else None
        return self._readings[key]

    def _reading_of(self, code: Code) -> Reading:
        body = statements(code.tree)
        offer = offer_of(body, self._entry_point) if self._entry_point in code.text else None
        return Reading(code, body, offer)

    def _completions(self, block: Block) -> Iterator[str]:
        """The head with the block as its body: as it stands, with its first line moved in, and moved in as a whole.

        A first line alone has lost its indent where somebody stripped the reply.
        """
        head, indent = self._context.head, self._context.indent
        text = block.text.strip("\n")
        if not text.strip():
            return
        if text[0] in " \t":
            yield f"{head}\n{text}"
        yield f"{head}\n{indent}{text.lstrip()}"
        if reading := self.reading(block):
            yield f"{head}\n{as_body(reading.code, indent)}"

    def _program(self, reading: Reading, offer: Offer, others: Sequence[Code], *, completes: bool = False) -> Program:
        context = self._context
        text = blanked(reading.code.text, demonstrations(reading.body, offer, context.names))
        lent = borrowed(reading.body, offer, context.names, others)
        given = [lent] if completes else [context.text, lent]
        program, offset = joined(given, text, offer.delegate, self._parser)
        return Program(program, offset + (context.head.count("\n") + 1 if completes else 0))


def _answers(reading: Reading, entry_point: str) -> bool:
    """Whether the function's own body says what it returns; prose and examples never do."""
    functions = [e.node for e in reading.body if isinstance(e.node, FUNCTIONS) and e.node.name == entry_point]
    return any(
        isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
        for function in functions[-1:]
        for statement in function.body
        for node in executed(statement)
    )
