"""The choice of the block that answers the task, and the program made of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koderz.systems.code.extraction.blocks import Block
from koderz.systems.code.extraction.program import (
    Code,
    Parser,
    as_body,
    blanked,
    joined,
    read_context,
)
from koderz.systems.code.extraction.statements import (
    BUILTINS,
    DEFINITIONS,
    EVERYTHING,
    FUNCTIONS,
    IMPORTS,
    Offer,
    Statement,
    Strength,
    bound,
    executed,
    line_groups,
    needs,
    setters,
)

# what a function may rely on unnamed
_PROCESS_SETTINGS = {"setrecursionlimit", "set_int_max_str_digits", "seed"}


def demonstrations(
    body: Sequence[Statement], offer: Offer, given: frozenset[str]
) -> list[Statement]:
    """Return the statements that the entry point doesn't need, in whole lines.

    `given` are the names that the prompt defines; what the reply makes of those counts as needed.
    """
    needed = needs(body, offer.names | given | {EVERYTHING})
    objects = needed & _assigned(body)
    setting = setters(body, needed, objects, barred=offer.names)
    left: set[str] = set()
    found: list[Statement] = []
    for index, each in enumerate(body):
        idle = _is_idle(each, after=index > offer.first) or (left and each.runs.reads & left)
        if idle and not _sets_up(each, needed, objects, setting):
            left |= each.binds
            found.append(each)
        else:
            left -= each.binds
    # One that shares a line with a statement that stays (`import sys; print(1)`) stays, too.
    gone = {id(each) for each in found}
    return [
        each
        for group in line_groups(body)
        if all(id(each) in gone for each in group)
        for each in group
    ]


def borrowed(
    body: Sequence[Statement], offer: Offer, given: frozenset[str], others: Iterable[Code]
) -> str:
    """Return statements of other blocks that bind names that the entry point needs and nobody else binds.

    A helper in one block and the function in the next belong together. `others` are in order of preference.
    """
    settled = given | BUILTINS | bound(body)
    wanted = set() if EVERYTHING in settled else needs(body, offer.names) - settled
    pieces: list[str] = []
    for other in others if wanted else ():
        needed = needs(other.body, wanted) - settled
        groups = [
            group
            for group in line_groups(other.body)
            if any(_lends(each, needed) for each in group)
        ]
        lines = other.text.split("\n")
        pieces += [
            "\n".join(lines[group[0].first_line - 1 : group[-1].last_line])
            for group in groups[::-1]
        ]
        wanted = (wanted | needed) - bound(each for group in groups for each in group)
    return "\n".join(reversed(pieces))


def _lends(statement: Statement, needed: set[str]) -> bool:
    lendable = (*DEFINITIONS, *IMPORTS, ast.Assign, ast.AnnAssign)
    return isinstance(statement.node, lendable) and bool(statement.binds & needed)


def _sets_up(statement: Statement, needed: set[str], objects: set[str], setting: set[str]) -> bool:
    if _shows_off(statement.node):
        return bool(statement.binds & needed)
    changed = (statement.binds | statement.runs.stores) & needed or statement.runs.methods & objects
    return bool(changed or statement.runs.calls & setting)


def _assigned(body: Sequence[Statement]) -> set[str]:
    """The names of objects with a state: `table.append(1)` may set up something, `math.sqrt(2)` doesn't."""
    stateless = (*DEFINITIONS, *IMPORTS)
    return {name for each in body if not isinstance(each.node, stateless) for name in each.binds}


def _is_idle(statement: Statement, *, after: bool) -> bool:
    """Whether a statement that sets up nothing needed can be removed. `after`: it follows the entry point.

    Before it, a call is kept unless it plainly shows something off: what it does to the process may matter. An import
    that nothing uses goes where it may fail, so that verdicts don't depend on what is installed.
    """
    node = statement.node
    if isinstance(node, DEFINITIONS):
        return False
    if isinstance(node, IMPORTS):
        return not _is_of_standard_library(node)
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))) if name in _PROCESS_SETTINGS:
            return False
    return after or _shows_off(node) or any(map(_reads_stdin, executed(node)))


def _is_of_standard_library(node: ast.Import | ast.ImportFrom) -> bool:
    modules = (
        [alias.name for alias in node.names]
        if isinstance(node, ast.Import)
        else [node.module or ""]
    )
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def _shows_off(node: ast.stmt) -> bool:
    match node:
        case ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name == "print"
        case ast.Expr(value=value):
            return not isinstance(value, ast.Call)
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return True
    return False


def _reads_stdin(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="input") | ast.Attribute(attr="stdin"):
            return True
    return False


PYTHON = frozenset(
    {
        "",
        "py",
        "python",
        "python2",
        "python3",
        "py3",
        "ipython",
        "pycon",
        "sage",
        "diff",
        "patch",
        "code",
    }
)


@dataclass(frozen=True, slots=True)
class Extraction:
    """The result of extracting a program from a reply.

    `program` is whole: the prompt's imports and helpers, then the reply's code. It is None without a usable one; with
    cause "syntax" it holds the text that came closest, with "no_entry_point" code that may define the entry point once
    it has run, which reading can't tell. `cause` is "" when there is a program, else "no_code",
    "no_entry_point", "refused", "length" or "syntax". `line_offset` is the number of lines before the reply's own first
    line, so that line n of a traceback is line n - line_offset of the reply's code. `reason` is the error of "syntax",
    or why a reply wasn't read to its end.
    """

    program: str | None
    cause: str
    line_offset: int = 0
    reason: str = ""


class Search:
    """Reads blocks, each text once, and searches them for the program."""

    def __init__(self, prompt: str, entry_point: str) -> None:
        self._parser = Parser(entry_point)
        self._context = read_context(prompt, entry_point, self._parser)
        self._read_texts: dict[str, Code | None] = {}

    def reading(self, block: Block) -> Code | None:
        """Return the block as Python, or None; only a part of it (`whole` is false) if its end is no Python."""
        return self._read(block.text, *block.longer)

    def defining(self, blocks: Sequence[Block], strength: Strength) -> Extraction | None:
        """Return the program of the last block that offers the entry point with this strength."""
        # the budget is for the preferred ones
        latest_first = [self.reading(block) for block in reversed(blocks)]
        for index, code in enumerate(latest_first):
            if code and code.offer and code.offer.strength == strength:
                # those before it, then those after
                others = [*latest_first[index + 1 :], *latest_first[:index][::-1]]
                return self._program(code, code.offer, [each for each in others if each])
        return None

    def completing(self, blocks: Sequence[Block]) -> Extraction | None:
        """Return the prompt with the last block that is a body for the function at its end."""
        if not self._context.head:
            return None
        for block in reversed(blocks):
            if block.language in PYTHON:
                others = [
                    code for each in blocks if each is not block and (code := self.reading(each))
                ]
                for text in self._completions(block):
                    code = self._read(text)
                    if code and code.offer and _answers(code):
                        return self._program(code, code.offer, others, completes=True)
        return None

    def combining(self, blocks: Sequence[Block]) -> Extraction | None:
        """Return the program of all Python blocks together, if each holds a part of the function."""
        texts = [block.text for block in blocks if block.language in PYTHON]
        code = self._read("\n".join(texts)) if len(texts) > 1 else None
        if code and code.offer and code.offer.strength == "defined":
            return self._program(code, code.offer, [])
        return None

    def as_it_stands(self, text: str, cause: str) -> Extraction:
        """Return a text in place of a program: one that is no Python, or that only running can judge."""
        program, offset = joined([self._context.text], text, "", self._parser)
        return Extraction(program, cause, offset)

    def _read(self, *texts: str) -> Code | None:
        if texts[0] not in self._read_texts:
            self._read_texts[texts[0]] = self._parser.read(texts)
        return self._read_texts[texts[0]]

    def _completions(self, block: Block) -> Iterator[str]:
        """The head with the block as its body: as it is, with its first line indented, and indented as a whole.

        A first line alone has lost its indent where somebody stripped the reply.
        """
        head, indent = self._context.head, self._context.indent
        text = block.text.strip("\n")
        if not text.strip():
            return
        if text[0] in " \t":
            yield f"{head}\n{text}"
        yield f"{head}\n{indent}{text.lstrip()}"
        if code := self.reading(block):
            yield f"{head}\n{as_body(code, indent)}"

    def _program(
        self, code: Code, offer: Offer, others: Sequence[Code], *, completes: bool = False
    ) -> Extraction:
        context = self._context
        text = blanked(code.text, demonstrations(code.body, offer, context.names))
        lent = borrowed(code.body, offer, context.names, others)
        given = [lent] if completes else [context.text, lent]
        program, offset = joined(given, text, offer.delegate, self._parser)
        return Extraction(program, "", offset + (context.head.count("\n") + 1 if completes else 0))


def _answers(code: Code) -> bool:
    """Whether the function's own body states a return value; prose and examples never do."""
    functions = [
        e.node
        for e in code.body
        if isinstance(e.node, FUNCTIONS) and e.node.name == code.entry_point
    ]
    return any(
        isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)
        for function in functions[-1:]
        for statement in function.body
        for node in executed(statement)
    )
