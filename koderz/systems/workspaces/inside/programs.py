"""Programs as a verifier starts them: whether one is to run what the agent wrote."""

from __future__ import annotations

import os
import re
import stat
from itertools import pairwise

from koderz.systems.workspaces.inside import callers

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_INTERPRETER = re.compile(
    r"(?:python|pypy|bash|sh|dash|zsh|ksh|node|nodejs|deno|bun|ruby|perl|php|lua|Rscript|julia|java|tclsh|env|busybox)"
    r"[\d.]*"
)
_BY_TEXT = {"sed", "awk", "gawk", "mawk", "nawk", "jq"}
_FILE_OPTIONS = {
    **dict.fromkeys((*_BY_TEXT, "m4", "bc", "dc"), ("f", ("--file", "--from-file"))),
    **dict.fromkeys(("make", "gmake"), ("f", ("--file", "--makefile"))),
    **dict.fromkeys(("xargs", "parallel"), ("a", ("--arg-file", "--arg-files"))),
}
"""The letter and the names of the options by which programs are told of their scripts, among files that are data."""

_WITH_VALUE = {"-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-W", "-X", "-I", "-r", "-M"}

_FROM_INPUT = {
    *(
        "sqlite3",
        "psql",
        "mysql",
        "bc",
        "dc",
        "m4",
        "ed",
        "ex",
        "gdb",
        "gnuplot",
        "octave",
        "at",
        "xargs",
        "parallel",
    ),
}
"""Programs beside interpreters whose standard input can say what they do."""

_COMPILERS = {
    "cc1",
    "cc1plus",
    "cc1obj",
    "cpp",
    "as",
    "ld",
    "clang",
    "rustc",
    "nasm",
    "tcc",
    "gfortran",
    "f951",
    "cobc",
}
_COPIERS = {
    *(
        "cat",
        "cp",
        "mv",
        "install",
        "head",
        "tail",
        "wc",
        "cut",
        "sort",
        "uniq",
        "tr",
        "tee",
        "dd",
        "od",
        "xxd",
        "base64",
    ),
    *(
        "grep",
        "diff",
        "cmp",
        "comm",
        "file",
        "tar",
        "gzip",
        "zip",
        "rsync",
        "md5sum",
        "sha1sum",
        "sha256sum",
        "sha512sum",
    ),
    *("cksum", "cc1", "cc1plus", "rustc", "javac"),
}
_DESCRIPTOR = r"/(?:dev|proc/self|proc/thread-self)/fd/(\d+)"
_LONGEST_TEXT, _SHORTEST_TEXT, _MOST_TEXTS = 256, 4, 200


class Starting:
    """A program that a process of the verifier's is about to become."""

    def __init__(
        self, thread: int, program: str, words: Sequence[str], folder: str, agents: Iterable[str]
    ) -> None:
        """`folder`: the one that it starts in; `agents`: the agent's files."""
        self.program, self.name, self._words = program, os.path.basename(program), words
        if self.name == "busybox" and len(words) > 1 and os.path.basename(words[0]) == "busybox":
            self.name, self._words = words[1], words[1:]
        self._thread, self._folder, self._agents = thread, folder, agents
        self._is_interpreter = bool(_INTERPRETER.fullmatch(self.name))

    def runs_agents(self, is_agents: Callable[[str], bool]) -> bool:
        """Whether it is to run a script, a module or a text of the agent's."""
        if self._is_interpreter and self._runs_file(is_agents):
            return True
        if any(is_agents(path) for path in self._option_files()):
            return True
        return is_agents(self.source()) or any(self.holds_agents(word) for word in self._texts())

    def input(self) -> str:
        """Its standard input, as /proc names it."""
        return callers.descriptor(self._thread, 0)

    def source(self) -> str:
        """The pipe, or what else is open already, that it takes its script from; empty where that is a file."""
        word = "-" if self.name in _FROM_INPUT else None
        if self._is_interpreter:
            word = self._script_word()
        if word is None and any(each in ("-", "/dev/stdin") for each in self._option_words()):
            word = "-"
        if word in ("-", "/dev/stdin"):
            return self.input()
        if found := re.fullmatch(_DESCRIPTOR, word or ""):
            return callers.descriptor(self._thread, int(found[1]))
        path = self._path(word) if word else ""
        return path if path and _is_pipe(path) else ""

    def scripts(self) -> list[str]:
        """The files that it takes its script from."""
        word = self._script_word() if self._is_interpreter else None
        files = [*self._option_files(), *([self._path(word)] if word else [])]
        return [path for path in files if os.path.isfile(path)]

    def given_text(self) -> str:
        """The script that it is given as a word; empty if there is none."""
        return "\n".join(self._texts())

    def holds_agents(self, text: str) -> bool:
        """Whether a text has the beginning of a file of the agent's in it, as where a shell puts it there."""
        for path in [each for each in self._agents if each.startswith("/")][:_MOST_TEXTS]:
            try:
                if not os.path.isfile(path):  # a pipe would wait
                    continue
                with open(path, "rb") as file:
                    head = os.fsdecode(file.read(_LONGEST_TEXT)).strip()
            except OSError:
                continue
            if len(head) >= _SHORTEST_TEXT and head in text and not head.replace(".", "").isdigit():
                return True
        return False

    def _path(self, word: str) -> str:
        return os.path.normpath(os.path.join(self._folder, word))

    def _runs_file(self, is_agents: Callable[[str], bool]) -> bool:
        for place, word in enumerate(self._words[1:], 1):
            if word == "-m" and place + 1 < len(self._words):
                module = self._path(self._words[place + 1].replace(".", "/"))
                return any(
                    is_agents(f"{module}{end}") for end in (".py", "/__main__.py", "/__init__.py")
                )
            if word.startswith("-") or "=" in word:
                continue
            path = self._path(word)
            if os.path.isdir(path) and is_agents(f"{path}/__main__.py"):
                return True
            if os.path.isfile(path):
                return is_agents(path)
        return False

    def _option_words(self) -> Iterator[str]:
        """The files of `-f FILE`, `-fFILE` and `--file=FILE`, and of options that end with f, such as `-nf FILE`."""
        letter, names = _FILE_OPTIONS.get(self.name, ("", ()))
        for place, word in enumerate(self._words[1:], 1) if letter else ():
            name, is_joined, value = word.partition("=")
            if name in names:
                yield value if is_joined else self._after(place)
            elif word.startswith("-") and not word.startswith("--") and letter in word:
                yield word.partition(letter)[2] or self._after(place)

    def _option_files(self) -> list[str]:
        return [self._path(each) for each in self._option_words() if each]

    def _after(self, place: int) -> str:
        return self._words[place + 1] if place + 1 < len(self._words) else ""

    def _texts(self) -> list[str]:
        """The texts of `-c TEXT` and `-e TEXT`, and those that programs such as sed take as their first word."""
        words = self._words[1:]
        if self._is_interpreter:
            return [
                text
                for option, text in pairwise(words)
                if option.startswith("-") and not option.startswith("--") and option[-1] in "ceEr"
            ]
        if self.name in _BY_TEXT and not [*self._option_words()]:
            given = [text for option, text in pairwise(words) if option in ("-e", "--expression")]
            return given or [word for word in words if not word.startswith("-")][:1]
        return []

    def _script_word(self) -> str | None:
        """The word that an interpreter's script is named by: `-` for its input, None if it has its script otherwise."""
        words = iter(self._words[1:])
        for word in words:
            if word in ("-s", "-"):
                return "-"
            if word in _WITH_VALUE:
                next(words, None)
            elif word.startswith(("-", "+")):
                if not word.startswith("--") and word[-1] in "cem":
                    return None
            elif "=" not in word or self.name != "env":
                return word
        return "-"


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def is_of_git(thread: int, program: str) -> bool:
    """Whether git starts a program that isn't its own, as settings in a checkout may say."""
    return is_git(thread) and not os.path.basename(program).startswith("git")


def is_git(process: int) -> bool:
    """Whether a process runs git, or a program of its own."""
    return _running(process).startswith("git")


def only_copies(process: int) -> bool:
    """Whether a process runs a program that does nothing with code but to hand it on."""
    return _running(process) in _COPIERS


def takes_variables(process: int) -> bool:
    """Whether a process runs a program that may write what it holds in its memory, as shells do."""
    name = _running(process)
    return bool(_INTERPRETER.fullmatch(name)) or name in _COPIERS


def compiles(process: callers.Process) -> bool:
    """Whether a process runs a program that takes in other files that a source names."""
    return _running(process.number).rpartition("-")[2] in _COMPILERS  # x86_64-linux-gnu-as


def _running(process: int) -> str:
    return os.path.basename(os.readlink(f"/proc/{process}/exe"))
