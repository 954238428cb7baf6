"""The syntax of Dockerfiles: instructions with their words and heredocs, and the variables in them.

It follows Docker's reference and the parser of BuildKit, whose own needs Go to be built where PyPI has no wheel of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from koderz.errors import KoderzError
from koderz.suites.dataset import meant

INSTRUCTIONS = (
    *(
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
    ),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
_JSON = ("ADD", "CMD", "COPY", "ENTRYPOINT", "RUN", "SHELL", "VOLUME")  # may have words in JSON
_PAIRS = ("ARG", "ENV", "LABEL")  # have words with quotes
# have words between blanks, whatever quotes say
_LISTS = ("ADD", "COPY", "EXPOSE", "FROM", "VOLUME")
_BLANK = re.compile(r"[\t\v\f\r ]+")
_DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=\s*(\S.*)", re.IGNORECASE)
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_WORDS = {
    escape: re.compile(
        rf"""(?:{e}(?:.|\Z)|"(?:[^"{e}]|{e}(?:.|\Z))*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s"'{e}])++""",
        re.DOTALL,
    )
    for escape, e in (("\\", r"\\"), ("`", "`"))
}  # by the character that escapes others: a blank in quotes, or an escaped one, belongs to a word
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_PLAIN = {"\\": re.compile(r"""[^$'"}\\]+"""), "`": re.compile(r"""[^$'"}`]+""")}
_NAME = re.compile(r"\d+|[@*#?$!-]|\w+")
_LONGEST_LINE = 65_535  # characters; docker reads no longer ones
_LONGEST_VALUE = 131_071  # characters of a variable; Linux starts no program with longer ones
_MOST = 2_000  # instructions
_DEEPEST = 50  # variables in the words of others


@dataclass(frozen=True, slots=True)
class Heredoc:
    """Lines in a Dockerfile that are a file, or the input of a command."""

    name: str
    content: str  # as it is written
    is_quoted: bool  # whether variables in it stay
    strips_tabs: bool  # whether it was opened by <<-
    word: str  # by which it was opened

    @property
    def text(self) -> str:
        """The content, without the tabs at the beginning of lines where <<- takes them off."""
        return re.sub(r"(?m)^\t+", "", self.content) if self.strips_tabs else self.content


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a Dockerfile."""

    name: str  # in upper case
    text: str  # behind name and flags, with continued lines joined
    line: int  # where it begins, from 1
    # of JSON: its texts; else as they are written; one where it takes a line
    words: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # --from=builder
    is_json: bool = False
    heredocs: tuple[Heredoc, ...] = ()
    escape: str = field(default="\\", repr=False)  # the character that escapes others


class SyntaxFault(ValueError):
    """A mistake in an instruction, whose line is put before it."""


def parse(text: str, where: str = "Dockerfile") -> tuple[Instruction, ...]:
    """The instructions of a Dockerfile. Raises KoderzError, which names `where` and the line, for what is none."""
    lines = text.removeprefix("\ufeff").split("\n")
    for number, line in enumerate(lines, 1):
        if "\0" in line or len(line) > _LONGEST_LINE:
            why = (
                "a NUL character"
                if "\0" in line
                else f"more than {_LONGEST_LINE:,} characters; break it by \\"
            )
            raise KoderzError(f"{where}, line {number}: {why}")
    number, at, found = 1, 0, list[Instruction]()
    try:
        escape = "\\"
        for line in lines:
            if not (directive := _DIRECTIVE.match(line.strip())):
                break
            if directive[1].lower() == "escape" and (escape := directive[2].strip()) not in _WORDS:
                raise SyntaxFault(f"escape={escape[:20]} is none; it is \\ or `")
        while at < len(lines):
            number, at, joined = _joined(lines, at, escape)
            if joined:
                instruction = _instruction(joined, number, escape)
                at, heredocs = _read_heredocs(instruction, lines, at)
                found.append(replace(instruction, heredocs=heredocs) if heredocs else instruction)
    except SyntaxFault as error:
        raise KoderzError(f"{where}, line {number}: {error}") from None
    if not 0 < len(found) <= _MOST:
        raise KoderzError(
            f"{where} has {len(found):,} instructions; it begins with FROM, and has at most {_MOST:,}"
        )
    return tuple(found)


def _joined(lines: list[str], at: int, escape: str) -> tuple[int, int, str]:
    """The number of the next instruction's line, the place behind it, and its continued lines as one."""
    number, parts = at + 1, list[str]()
    while at < len(lines):
        line = lines[at].rstrip("\r")
        at += 1
        if line.lstrip().startswith("#") or not line.strip():  # neither ends a continued line
            continue
        number = number if parts else at
        end = line.rstrip(" \t")
        if not end.endswith(escape) or end.endswith(escape * 2):
            parts.append(line)
            break
        parts.append(end[:-1])
    return number, at, "".join(parts).strip()


def _instruction(joined: str, number: int, escape: str) -> Instruction:
    written, *rest = _BLANK.split(joined, maxsplit=1)
    name = written.upper()
    if name not in INSTRUCTIONS:
        raise SyntaxFault(
            f"there is no instruction {written[:40]!r}; {meant(name[:40], INSTRUCTIONS)}"
        )
    flags, text = _flags(rest[0] if rest else "")
    if not text:
        raise SyntaxFault(f"{name} needs an argument")
    if name in _JSON and text.startswith("[") and (texts := _texts(text)) is not None:
        return Instruction(name, text, number, texts, flags, is_json=True, escape=escape)
    words: tuple[str, ...] = (text,)
    if name in _PAIRS:
        words = tuple(split_words(text, escape))
    elif name in _LISTS:
        words = (*_BLANK.split(text),)
    return Instruction(name, text, number, words, flags, escape=escape)


def _flags(text: str) -> tuple[tuple[str, ...], str]:
    """The words at the beginning that start with --, and the rest."""
    flags, at = list[str](), 0
    for word in _WORDS["\\"].finditer(text):
        if not word[0].startswith("--"):
            break
        at = word.end()
        if word[0] == "--":  # ends them
            break
        flags.append(_unquoted(word[0]))
    return tuple(flags), text[at:].strip()


def _texts(text: str) -> tuple[str, ...] | None:
    """The texts of a list in JSON; None for what is no JSON, which is a command that begins with a bracket."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(each, str) and "\0" not in each for each in found):
        raise SyntaxFault("in the JSON form every word is a text in double quotes, without NUL")
    return tuple(each.encode("utf-8", "replace").decode() for each in found)


def split_words(text: str, escape: str = "\\") -> Iterator[str]:
    """The words of a text, with their quotes."""
    return (found[0] for found in _WORDS[escape].finditer(text))


def _unquoted(word: str) -> str:
    """A word without its quotes and escapes, whose variables stay as they are."""
    return _QUOTED.sub(lambda found: found[1] or found[2] or found[3] or "", word)


def _read_heredocs(
    instruction: Instruction, lines: list[str], at: int
) -> tuple[int, tuple[Heredoc, ...]]:
    """The place behind an instruction's heredocs, and these, in their order."""
    found = list[Heredoc]()
    if (
        instruction.name not in ("ADD", "COPY", "RUN")
        or instruction.is_json
        or "<<" not in instruction.text
    ):
        return at, ()
    for word in split_words(instruction.text):
        if not (opened := _HEREDOC.fullmatch(word)):
            continue
        name, content = _unquoted(opened[2]), list[str]()
        while True:
            if at >= len(lines):
                raise SyntaxFault(
                    f"the lines of <<{opened[2][:40]} don't end; put {name[:40]} on a line of its own"
                )
            line = lines[at]
            at += 1
            end = line.rstrip("\r")
            if (end.lstrip("\t") if opened[1] else end) == name:
                break
            content.append(f"{line}\n")
        found.append(Heredoc(name, "".join(content), name != opened[2], bool(opened[1]), word))
    return at, tuple(found)


def replaced(
    text: str, values: Mapping[str, str], escape: str = "\\", *, has_quotes: bool = True
) -> str:
    """The text with its variables replaced, and without its quotes and escapes. What is unset is empty.

    Without `has_quotes` quotes are letters like others, as in a heredoc. Raises SyntaxFault.
    """
    plain = _PLAIN[escape].match(text)
    return (
        text
        if plain and plain.end() == len(text)
        else _Replacing(text, values, escape, has_quotes).until("")
    )


class _Replacing:
    """A text that is read once, from left to right."""

    def __init__(self, text: str, values: Mapping[str, str], escape: str, has_quotes: bool) -> None:
        self.text, self.values, self.escape, self.at = text, values, escape, 0
        self.has_quotes, self.depth, self.size = has_quotes, 0, 0

    def until(self, stop: str) -> str:
        """The text up to a character, or to the end where there is none."""
        found, text = list[str](), self.text
        while self.at < len(text):
            if plain := _PLAIN[self.escape].match(text, self.at):
                self.at = plain.end()
                found.append(plain[0])
                continue
            char = text[self.at]
            self.at += 1
            if stop and char == stop:
                return "".join(found)
            if char == "$":
                found.append(self.variable())
            elif char == "'" and self.has_quotes:
                if (end := text.find("'", self.at)) < 0:
                    raise SyntaxFault(f"a quote ' isn't closed in {text[:60]}")
                found.append(text[self.at : end])
                self.at = end + 1
            elif char == '"' and self.has_quotes:
                found.append(self.in_double_quotes())
            elif char == self.escape:
                found.append(text[self.at : self.at + 1])
                self.at += 1
            else:
                found.append(char)
        if stop:
            raise SyntaxFault(f"a brace {{ isn't closed in {text[:60]}")
        return "".join(found)

    def in_double_quotes(self) -> str:
        found, text = list[str](), self.text
        while self.at < len(text):
            char = text[self.at]
            self.at += 1
            if char == '"':
                return "".join(found)
            if char == "$":
                char = self.variable()
            elif char == self.escape and text[self.at : self.at + 1] in ('"', "$", self.escape):
                char = text[self.at]
                self.at += 1
            found.append(char)
        raise SyntaxFault(f"a quote \" isn't closed in {text[:60]}")

    def variable(self) -> str:
        """The value of the variable whose dollar sign was read."""
        text = self.text
        if text[self.at : self.at + 1] != "{":
            name = self.name()
            return self.limited(self.values.get(name, "")) if name else "$"
        self.at += 1
        if not (name := self.name()):
            raise SyntaxFault(f"${{ without a name in {text[:60]}")
        how, value = text[self.at : self.at + 1], self.values.get(name)
        self.at += 1
        if how == "}":
            return self.limited(value or "")
        if how == ":":  # what is empty counts as unset
            value, how = value or None, text[self.at : self.at + 1]
            self.at += 1
        if how not in ("-", "+", "?"):
            raise SyntaxFault(
                f"${{{name}{how or ' at the end'} isn't followed; ${{X}}, ${{X:-w}} and ${{X:+w}} are"
            )
        self.depth += 1
        if self.depth > _DEEPEST:
            raise SyntaxFault(f"more than {_DEEPEST} variables within each other")
        word = self.until("}")
        self.depth -= 1
        if how == "?" and value is None:
            raise SyntaxFault(f"{name}: {word or 'it has to be set'}")
        if how == "+":
            return "" if value is None else word
        return word if value is None else self.limited(value)

    def limited(self, value: str) -> str:
        """The value, unless too much has been put in the place of variables."""
        self.size += len(value)
        if self.size > _LONGEST_VALUE:
            raise SyntaxFault(f"its variables have more than {_LONGEST_VALUE:,} characters")
        return value

    def name(self) -> str:
        found = _NAME.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found[0] if found else ""
