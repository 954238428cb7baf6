"""The blocks of a reply that may be code, and the choice of the one that answers the task.

Markdown is read as models write it rather than as CommonMark defines it: a fence may be
indented, quoted or in a list, its language may share a line with code, and an opening fence with a language ends a
block that nobody closed. Everything goes line by line, so time grows with the reply and not with what is in it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from koderz.systems.code.extraction.program import (
    Code,
    Parser,
    as_body,
    blanked,
    joined,
    margin_of,
    mentions_definition,
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

MOST_BLOCKS = 64  # the last ones; a model that repeats itself until its limit writes thousands

_BULLET = re.compile(r"(?:[-*+]|\d{1,3}[.)])[ \t]{1,4}(?=```|~~~)")
_MARK = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"\{?[ \t]?\.?([A-Za-z][\w+#.-]{0,30})(?=[ \t},:=]|$)")
_CODE = re.compile(r"(?:def|class|import|from|async|return|for|while|if|with|try)\b|@\w")
_BLANK = " \t\u00a0\u200b\ufeff"
_BEFORE_FENCE = _BLANK + ">"
# columns further in than the opening one; beyond, it belongs to the code, e.g. to a docstring
_DEEPEST_FENCE = 3
_MORE_ENDS = 3


@dataclass(frozen=True, slots=True)
class Block:
    """A text that may be code. `longer` are the texts up to a later fence, in case the first is part of the code."""

    text: str
    language: str = ""  # lower case; "" where none was named
    closed: bool = True
    longer: tuple[str, ...] = ()
    marked: bool = True  # as code, by a fence or the like


@dataclass(frozen=True, slots=True)
class Fence:
    """A line that opens or closes a block."""

    line: int
    indent: int
    quoted: bool
    mark: str
    info: str

    def closes(self, opening: Fence) -> bool:
        return not self.info and self.mark.startswith(opening.mark) and self.is_level_with(opening)

    def is_level_with(self, opening: Fence) -> bool:
        return self.indent <= opening.indent + _DEEPEST_FENCE


def fenced_blocks(text: str) -> list[Block]:
    """Return the last `MOST_BLOCKS` fenced blocks that hold anything, in the order in which they stand."""
    lines = text.split("\n")
    fences = [fence for number, line in enumerate(lines) if (fence := _fence(line, number))]
    numbers = [fence.line for fence in fences]
    blocks: list[Block] = []
    for opening, end, closed in reversed([*_spans(fences, len(lines))]):
        language, first = _first_line(opening)
        text = _content(opening, first, lines[opening.line + 1 : end])
        if not text.strip():
            continue
        later = bisect_right(numbers, end)
        ends = numbers[later : later + _MORE_ENDS]
        longer = tuple(_content(opening, first, lines[opening.line + 1 : each]) for each in ends)
        blocks.append(Block(text, language, closed, longer))
        if len(blocks) == MOST_BLOCKS:
            break
    return blocks[::-1]


def fenced_ranges(text: str) -> Iterator[range]:
    """Yield the numbers of the lines within each fenced block."""
    lines = text.split("\n")
    fences = [fence for number, line in enumerate(lines) if (fence := _fence(line, number))]
    yield from (range(opening.line + 1, end) for opening, end, _ in _spans(fences, len(lines)))


def fence_state(fence: Fence | None, line: str) -> Fence | None:
    """Return the fence that is open after a line, given the one that is open before it."""
    here = _fence(line, 0)
    if here is None or _one_liner(here) is not None:
        return fence
    if fence is None:
        return here
    return None if here.closes(fence) else fence


def _fence(line: str, number: int) -> Fence | None:
    if "```" not in line and "~~~" not in line:
        return None
    body = line.lstrip(_BEFORE_FENCE)
    if bullet := _BULLET.match(body):
        body = body[bullet.end() :]
    mark = _MARK.match(body)
    if mark is None:
        return None
    indent = len(line) - len(body)
    return Fence(number, indent, ">" in line[:indent], mark[0], body[mark.end() :].strip(_BLANK))


def _spans(fences: list[Fence], end: int) -> Iterator[tuple[Fence, int, bool]]:
    """Opening fences, each with the number of the line after its block, and whether that line closes the block."""
    opening: Fence | None = None
    for fence in fences:
        if opening is None:
            if _one_liner(fence) is not None:
                yield fence, fence.line + 1, True
            else:
                opening = fence
        elif fence.closes(opening):
            yield opening, fence.line, True
            opening = None
        elif _LANGUAGE.match(fence.info) and fence.is_level_with(opening):
            yield opening, fence.line, True
            opening = fence
    if opening is not None:
        yield opening, end, False


def _one_liner(fence: Fence) -> str | None:
    """The code of a fence that opens and closes on one line, as in ```` ```x = 1``` ````."""
    if fence.mark[0] != "`" or not fence.info.endswith(fence.mark):
        return None
    return fence.info.removesuffix(fence.mark)


def _first_line(opening: Fence) -> tuple[str, str]:
    """The language of a fence, and the code on the same line."""
    one_liner = _one_liner(opening)
    info = opening.info if one_liner is None else one_liner
    language = _LANGUAGE.match(info)
    rest = info[language.end() :].strip() if language else ""
    if _CODE.match(info):
        return "", info
    if language and (not rest or _CODE.match(rest)):
        return language[1].lower(), rest
    if one_liner is not None:
        return "", info
    # after it a title, a file name, options of a highlighter
    return language[1].lower() if language else "", ""


def _content(opening: Fence, first: str, lines: list[str]) -> str:
    own = [_without_quote(line) for line in lines] if opening.quoted else lines
    top = next((line for line in own if line.strip()), "")
    margin = 0 if opening.quoted else min(opening.indent, len(margin_of(top)))
    body = [line[min(margin, len(margin_of(line))) :] for line in own]
    return "\n".join([first, *body] if first else body)


def _without_quote(line: str) -> str:
    body = line.lstrip(" \t")
    return body[1:].removeprefix(" ") if body.startswith(">") else line


_TAG = r"(?:pre|code|answer|solution|program|python)\b[^<>\n]{0,80}"
_OPENING_TAG = re.compile(
    rf"^[ \t]*(?:<{_TAG}>\s{{0,9}}(?=<))*(?:<{_TAG}>|\[(?:PYTHON|CODE|ANSWER)\])",
    re.MULTILINE | re.IGNORECASE,
)
_CLOSING_TAG = re.compile(rf"</{_TAG}>|\[/(?:PYTHON|CODE|ANSWER)\]", re.IGNORECASE)

_DEFINITION_LINE = re.compile(
    r"(?:async[ \t]+def|def|class)[ \t]+\w+[ \t]*[(:]"
    r"|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*[\w.]+)*[ \t]*(?:#.*)?$"
    r"|from[ \t]+[\w.]+[ \t]+import[ \t]|@[A-Za-z_]"
)
_STATEMENT_LINE = re.compile(
    r"(?:return|yield|raise|assert|del|global|nonlocal)\b|(?:for|while|if|with|try)\b.*:[ \t]*(?:#.*)?$"
    r"|[A-Za-z_][\w.]*\(.*\)[ \t]*(?:#.*)?$"
    r"|[A-Za-z_(*][\w.\[\](), *:]*?(?:[-+%|&^]|//?)?=[ \t]*[^\s=]"
)
_WRAPPERS = " \t\"'“”‘’`*\u00a0\ufeff"
_MOST_STARTS = 4
_CONSIDERED = 300  # characters of a line: enough to tell what kind it is


def block_kinds(answer: str, entry_point: str) -> Iterator[list[Block]]:
    """Yield lists of blocks, in the order in which kinds are tried; within a list later ones are preferred."""
    yield _json_blocks(answer)
    yield [Block(answer, marked=False)]
    fenced = fenced_blocks(answer)
    yield [inner for block in fenced for inner in _json_blocks(block.text) or [block]]
    yield _tagged_blocks(answer)
    yield _json_blocks(answer[answer.find("{") : answer.rfind("}") + 1])
    yield _bare_blocks(answer, entry_point)


def looks_like_code(text: str) -> bool:
    """Return whether a line of the text begins as a statement of Python, or of a language like it."""
    return any(_is_code_line(_head(line)) for line in text.split("\n"))


def plain(text: str) -> str:
    """Text with one kind of line end, that any encoder takes and any parser reads to its end."""
    # lone halves of pairs are marked
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _json_blocks(text: str) -> list[Block]:
    return [
        block for value in _json_strings(text) for block in fenced_blocks(value) or [Block(value)]
    ]


def _json_strings(text: str) -> list[str]:
    """All strings in a JSON object or array; a list of strings counts as the lines of one."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        return []
    try:
        pending: list[object] = [json.loads(stripped, strict=False)]
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        elif isinstance(value, list):
            lines = [each for each in value if isinstance(each, str)]
            pending += ["\n".join(lines)] if lines and len(lines) == len(value) else reversed(value)
    return [plain(each) for each in found[-MOST_BLOCKS:]]


def _tagged_blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    position = 0
    while opening := _OPENING_TAG.search(text, position):
        closing = _CLOSING_TAG.search(text, opening.end())
        position = closing.end() if closing else len(text)
        blocks.append(
            Block(
                text[opening.end() : closing.start() if closing else None],
                closed=closing is not None,
            )
        )
    return blocks[-MOST_BLOCKS:]


def _bare_blocks(text: str, entry_point: str) -> list[Block]:
    """The text from the last definition of the entry point, from the first definition, from the first line like code.

    The first such line comes last, since it leaves out least.
    """
    lines = text.split("\n")
    starts: dict[int, None] = {}
    inside: int | None = None  # the margin of the line that opened the block
    for number, line in enumerate(lines):
        margin = len(line) - len(line.lstrip())
        if not line.strip() or (inside is not None and margin > inside):
            continue
        inside = None
        if _is_code_line(_head(line)):
            starts[number] = None
            inside = margin if line.rstrip().endswith(":") else None
    definitions = [number for number in starts if _DEFINITION_LINE.match(_head(lines[number]))]
    own = [
        number for number in definitions if mentions_definition(_head(lines[number]), entry_point)
    ]
    first = [number for number in starts if number - 1 not in starts][:_MOST_STARTS]
    preferred = dict.fromkeys([*first, *definitions[:1], *own[-1:]])
    return [Block(_from_line(lines, number), marked=False) for number in reversed(preferred)]


def _head(line: str) -> str:
    return line.lstrip(_WRAPPERS)[:_CONSIDERED]


def _is_code_line(line: str) -> bool:
    return bool(_DEFINITION_LINE.match(line) or _STATEMENT_LINE.match(line))


def _from_line(lines: list[str], number: int) -> str:
    first = lines[number].lstrip("\"'“”‘’`*\ufeff")
    return "\n".join([first, *lines[number + 1 :]])


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
