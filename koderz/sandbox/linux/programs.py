"""Programs as a verifier starts them: whether one is to run what the agent wrote."""

from __future__ import annotations

import os
import re

from koderz.sandbox.linux import callers

TYPE_CHECKING = False  # so that process 1 of a workspace starts at once, see `inside`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_INTERPRETER = re.compile(
    r"(?:python|pypy|bash|sh|dash|zsh|ksh|node|nodejs|deno|bun|ruby|perl|php|lua|Rscript|julia|java|tclsh|env|busybox)"
    r"[\d.]*"
)
_BY_OPTION = {"sed", "awk", "gawk", "mawk", "nawk", "jq", "m4", "bc", "dc"}
"""Programs whose scripts are named by `-f FILE`, among files that are data."""

_FROM_INPUT = {"sqlite3", "psql", "mysql", "bc", "dc", "m4", "ed", "ex", "gdb", "gnuplot", "octave", "at", "xargs"}
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
_LONGEST_TEXT, _SHORTEST_TEXT, _MOST_TEXTS = 256, 4, 200


class Starting:
    """A program that a process of the verifier's is about to become."""

    def __init__(self, thread: int, program: str, words: Sequence[str], folder: str, agents: Iterable[str]) -> None:
        """`folder`: the one that it starts in; `agents`: the agent's files."""
        self._thread, self._name, self._words = thread, os.path.basename(program), words
        self._folder, self._agents = folder, agents

    def runs_agents(self, is_agents: Callable[[str], bool]) -> bool:
        """Whether it is to run a script, a module or a text of the agent's."""
        is_interpreter = bool(_INTERPRETER.fullmatch(self._name))
        if is_interpreter and self._runs_file(is_agents):
            return True
        if self._name in _BY_OPTION and any(is_agents(path) for path in self._option_files()):
            return True
        if is_interpreter and any(self._is_agents_text(word) for word in self._texts()):
            return True
        if (is_interpreter and not self._has_script()) or self._name in _FROM_INPUT:
            return is_agents(self._input())
        return False

    def _path(self, word: str) -> str:
        return os.path.normpath(os.path.join(self._folder, word))

    def _runs_file(self, is_agents: Callable[[str], bool]) -> bool:
        for place, word in enumerate(self._words[1:], 1):
            if word == "-m" and place + 1 < len(self._words):
                module = self._path(self._words[place + 1].replace(".", "/"))
                return any(is_agents(f"{module}{end}") for end in (".py", "/__main__.py", "/__init__.py"))
            if word.startswith("-") or "=" in word:
                continue
            path = self._path(word)
            if os.path.isdir(path) and is_agents(f"{path}/__main__.py"):
                return True
            if os.path.isfile(path):
                return is_agents(path)
        return False

    def _option_files(self) -> list[str]:
        """The files of `-f FILE`, `-fFILE` and `--file=FILE`, and of options that end with f, such as `-nf FILE`."""
        found = []
        for place, word in enumerate(self._words[1:], 1):
            name, is_joined, value = word.partition("=")
            if word.startswith("--") and name in ("--file", "--from-file"):
                found.append(value if is_joined else self._after(place))
            elif word.startswith("-") and not word.startswith("--") and "f" in word:
                found += [word.partition("f")[2] or self._after(place)]
        return [self._path(each) for each in found if each]

    def _after(self, place: int) -> str:
        return self._words[place + 1] if place + 1 < len(self._words) else ""

    def _texts(self) -> list[str]:
        """The texts of `-c TEXT` and `-e TEXT`."""
        return [
            self._words[place + 1]
            for place, word in enumerate(self._words[:-1])
            if place and word.startswith("-") and not word.startswith("--") and word[-1] in "ceEr"
        ]

    def _is_agents_text(self, text: str) -> bool:
        """Whether a text has the beginning of a file of the agent's in it, as where a shell puts it there."""
        for path in [*self._agents][:_MOST_TEXTS]:
            try:
                with open(path, "rb") as file:
                    head = os.fsdecode(file.read(_LONGEST_TEXT)).strip()
            except OSError:
                continue
            if len(head) >= _SHORTEST_TEXT and head in text and not head.replace(".", "").isdigit():
                return True
        return False

    def _has_script(self) -> bool:
        """Whether it takes its script from a word, not from its standard input."""
        words = self._words[1:]
        if "-s" in words or "-" in words:
            return False
        return any(not word.startswith("-") or word in ("-c", "-e", "-m") for word in words)

    def _input(self) -> str:
        try:
            return os.readlink(f"/proc/{self._thread}/fd/0")
        except OSError:
            return ""


def is_of_git(thread: int, program: str) -> bool:
    """Whether git starts a program that isn't its own, as settings in a checkout may say."""
    starter, name = _running(thread), os.path.basename(program)
    return starter.startswith("git") and not name.startswith("git")


def only_copies(process: int) -> bool:
    """Whether a process runs a program that does nothing with code but to hand it on."""
    return _running(process) in _COPIERS


def compiles(process: callers.Process) -> bool:
    """Whether a process runs a program that takes in other files that a source names."""
    return _running(process.number).rpartition("-")[2] in _COMPILERS  # x86_64-linux-gnu-as


def _running(process: int) -> str:
    return os.path.basename(os.readlink(f"/proc/{process}/exe"))
