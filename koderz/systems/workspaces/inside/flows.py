"""Texts of the agent's on their way through pipes, variables and files, and who takes them for code.

A process *reads* once it has opened a file of the agent's, or has a pipe of such a process as its input. It *hears*
once one that it started has told it of that by a pipe, as a shell does in `$(cat FILE)`, or where it comes of one that
reads or hears. What a process that reads writes to a pipe is the agent's, as a file would be: an interpreter that runs
it is judged. What shells do with a text can't be seen, so that it counts by their scripts: one that evaluates texts
(`eval`, `source`, Python's `exec`) is tainted as soon as it reads or hears.
"""

from __future__ import annotations

import ctypes
import os
import re
import select

from koderz.systems.workspaces.inside import callers, programs

TYPE_CHECKING = False  # which process 1 of a sandbox would wait for
if TYPE_CHECKING:
    from collections.abc import Callable, Collection


_PIPES, _DEVICES = ("pipe:", "socket:"), ("/dev/null", "/dev/pts", "/dev/tty", "anon_inode:")
_LONGEST_TEXT, _MOST_SCRIPTS = 1 << 16, 50
_WAIT = 30  # ms for a text that a shell is about to write
_tee = ctypes.CDLL(None, use_errno=True).tee
_tee.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint)


class Flows:
    """The processes that the agent's texts have reached. `taint` is called with what loads them, and by what way."""

    def __init__(
        self,
        agents: set[str],
        known: dict[int, callers.Process],
        taint: Callable[[callers.Process, str], None],
        note: Callable[[str], None],
    ) -> None:
        """`agents`: the agent's files and pipes, which grow here; `note`: what is loaded, without a taint."""
        self._agents, self._known, self._taint, self._note = agents, known, taint, note
        self._doubtful: set[str] = set()  # files made by shells and interpreters that have heard

    def began(self, process: callers.Process) -> None:
        """A process is seen for the first time."""
        above = process.parent
        if above:
            process.hears = above.reads or above.hears
            process.texts, process.text = [*above.texts], above.text
        process.input = callers.descriptor(process.number, 0)
        if process.input in self._agents:
            self.received(process)

    def starts(self, process: callers.Process, starting: programs.Starting) -> None:
        """A process is about to become another program, by which it isn't judged."""
        process.input, process.runs = starting.input(), starting.source()
        if self._starts_doubtful(process, starting) or (
            process.hears and self._brings_text(process, starting)
        ):
            process.judged = True
            return
        settings = [path for path in process.texts if sets_settings(_read(path))]
        process.texts, process.text = [*starting.scripts(), *settings], starting.given_text()
        if process.input in self._agents:
            self.received(process, starting.name)
        elif process.hears:
            self.weigh(process, starting.name)

    def _brings_text(self, process: callers.Process, starting: programs.Starting) -> bool:
        """Whether a process that hears hands a text of the agent's to the program that it becomes.

        Where it may be one it is tainted.
        """
        text = self._peeked(process) if process.runs else starting.given_text()
        if text and starting.holds_agents(text):
            return True
        if process.runs and process.runs != "/dev/null" and not text:
            self._taint(process, f"what {starting.name} is sent")
        elif text and not self._is_literal(text, process):
            self._taint(process, f"a text that {starting.name} is given")
        return False

    def _starts_doubtful(self, process: callers.Process, starting: programs.Starting) -> bool:
        """Whether a process starts a script that a shell has made of a text of the agent's; tainted where it may be."""
        for script in (starting.program, *starting.scripts()):
            if script in self._doubtful and not self._is_literal(_read(script), process):
                if starting.holds_agents(_read(script)):
                    return True
                self._taint(process, script)
        return False

    def gives(self, process: callers.Process) -> None:
        """Take for the agent's what a process writes: to its pipes, and to the files that it has made or was handed."""
        self.add(process.made)
        above = first = process.parent
        while first and first.parent:
            first = first.parent
        usual, known = _outputs(first), _outputs(above)
        for number in callers.descriptors(process.number):
            what = callers.descriptor(process.number, number)
            if (
                number
                and what not in usual
                and not what.startswith(_DEVICES)
                and callers.is_written(process.number, number)
            ):
                self.add({what})
                if above and what not in known and what.startswith(_PIPES):
                    self._heard(above)

    def received(self, process: callers.Process, name: str = "") -> None:
        """A process reads the agent's. `name`: the program that it is about to become."""
        if not process.reads:
            process.reads = True
            self.gives(process)
        self.weigh(process, name)

    def _heard(self, process: callers.Process) -> None:
        if not (process.judged or process.hears):
            process.hears = True
            self.gives(process)
            self.weigh(process)

    def add(self, names: Collection[str]) -> None:
        """Files and pipes become the agent's, and who has them for its input, its."""
        new = {*names} - self._agents
        self._agents |= new
        for process in [*self._known.values()] if new else ():
            above = process.parent
            if process.runs in new or (above and above.judged):
                process.judged = True
            elif process.input in new and not process.judged:
                self.received(process)

    def made(self, process: callers.Process, names: set[str]) -> None:
        """A process has made files."""
        if process.reads or process.tainted:
            self.add(names)
            return
        process.made |= names
        if process.hears and programs.takes_variables(process.number):
            self._doubtful |= names

    def opened_script(self, process: callers.Process, path: str) -> None:
        """A process of the verifier's opens a file of the tests."""
        if path not in process.texts and len(process.texts) < _MOST_SCRIPTS:
            process.texts.append(path)
            if process.reads or process.hears:
                self.weigh(process)

    def weigh(self, process: callers.Process, name: str = "", opened: str = "") -> None:
        """Taints a process whose script makes code of the texts that have reached it.

        `name`: the program that it is about to become; `opened`: a file of the agent's that it opens.
        """
        if process.tainted or process.judged:
            return
        name = name or os.path.basename(callers.program(process.number))
        for script in (process.text, *(_read(path) for path in process.texts)):
            if found := evaluates(name, script, opened):
                self._taint(process, f"{opened or 'a text'} by {name}'s {found}")
                return
            if found := may_evaluate(name, script):
                self._note(f"{opened or 'a text'} by {name}'s {found}")

    @staticmethod
    def _is_literal(text: str, process: callers.Process) -> bool:
        """Whether a text stands as it is in the scripts of the process that it comes from."""
        text = text.strip()
        return any(
            text in script for script in (process.text, *(_read(path) for path in process.texts))
        )

    @staticmethod
    def _peeked(process: callers.Process) -> str:
        """The text that waits in a process's input, which stays there."""
        try:
            source = os.open(
                f"/proc/{process.number}/fd/0", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            return ""
        try:
            if not process.input.startswith("pipe:"):
                return os.fsdecode(os.pread(source, _LONGEST_TEXT, 0))
            return _waiting_in(source)
        except OSError:
            return ""
        finally:
            os.close(source)


def _outputs(process: callers.Process | None) -> set[str]:
    """The standard output and errors of a process."""
    return {callers.descriptor(process.number, number) for number in (1, 2)} if process else set()


def _waiting_in(pipe: int) -> str:
    looked = select.poll()
    looked.register(pipe, select.POLLIN)
    if not looked.poll(_WAIT):
        return ""
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        count = _tee(pipe, theirs, _LONGEST_TEXT, 2)  # without waiting
        return os.fsdecode(os.read(ours, count)) if count > 0 else ""
    finally:
        os.close(ours)
        os.close(theirs)


_scripts: dict[tuple[str, int, int], str] = {}


def _read(path: str) -> str:
    try:
        about = os.stat(path)
        key = path, about.st_ino, about.st_mtime_ns
        if key not in _scripts:
            if not os.path.isfile(path):
                return ""
            with open(path, "rb") as file:
                _scripts[key] = os.fsdecode(file.read(_LONGEST_TEXT))
        return _scripts[key]
    except OSError:
        return ""


_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "ash", "busybox")
_START = r"(?:^|[;&|({]|\b(?:then|do|else|exec|time|if|while|until)\b|!)\s*"  # of a command
# patterns are compiled where they are needed, which few verifiers do
_COMMENTS = r"(?:^|\s)#[^\n]*"

_IN_SHELLS = (
    rf"{_START}(?:(?:builtin|command)\s+)?(eval)\b"
    rf"|{_START}(trap)\b[^\n]*[$`]"
    rf"|{_START}(?:source|\.)\s+(<\(|/dev/|/proc/)"
    rf"|{_START}(\$\((?!\()|`)"
    r"|\b(BASH_ENV|ENV|PYTHONSTARTUP|PROMPT_COMMAND)="
)
_SETTINGS = r"\b(?:BASH_ENV|ENV|PYTHONSTARTUP|PROMPT_COMMAND)="
_SOURCED = rf"{_START}(?:source|\.)\s+(\S+)"
_PERHAPS_IN_SHELLS = (
    rf"(\(\()|\[\[[^\n]*?(-(?:eq|ne|lt|le|gt|ge|v))\b|{_START}(\$\w+|\"\$\w+\"|\$\{{\w+\}})(?=\s|$)"
)
_IN_PYTHON = (
    r"(?<![.\w])(exec|eval|compile|__import__)\s*\("
    r"|\b(runpy|importlib|pickle|cloudpickle|dill|joblib|marshal|shelve|jsonpickle)\b"
    r"|\b(yaml\.(?:unsafe_load|full_load|load)|torch\.load|numexpr|sympify|parse_expr)\b"
    r"|\b(allow_pickle\s*=\s*True|InteractiveInterpreter|InteractiveConsole|from_string)\b"
)
_ELSEWHERE = r"\b(eval|instance_eval|class_eval|require|load|loadstring|dofile|exec|system|Function|vm|import|do)\b"


def evaluates(program: str, script: str, opened: str = "") -> str:
    """The word by which a program's script makes code of what it reads; empty if there is none.

    `opened`: the file that it has just opened, which a shell may do for `source`.
    """
    if _is_shell(program):
        script = re.sub(_COMMENTS, "", script)
        if opened and any(
            _may_name(word, opened) for word in re.findall(_SOURCED, script, re.MULTILINE)
        ):
            return "source"
        return _first(re.search(_IN_SHELLS, script, re.MULTILINE))
    if program.startswith(("python", "pypy")):
        return _first(re.search(_IN_PYTHON, script))
    if re.fullmatch(
        r"(?:node|nodejs|deno|bun|ruby|perl|php|lua|tclsh|Rscript|julia)[\d.]*", program
    ):
        return _first(re.search(_ELSEWHERE, script))
    return ""


def sets_settings(script: str) -> bool:
    """Whether a shell's script names files that the programs which it starts run first."""
    return bool(re.search(_SETTINGS, script))


def may_evaluate(program: str, script: str) -> str:
    """The words by which a shell makes code of some texts alone: arithmetic, and commands that are variables."""
    if not _is_shell(program):
        return ""
    return _first(re.search(_PERHAPS_IN_SHELLS, re.sub(_COMMENTS, "", script), re.MULTILINE))


def _is_shell(program: str) -> bool:
    return program.rstrip("0123456789.") in _SHELLS


def _may_name(word: str, path: str) -> bool:
    """Whether a word of a shell can stand for a path."""
    word = word.strip("\"';")
    name = os.path.basename(word)
    return name == os.path.basename(path) or bool(re.search(r"[$*?\[`]", name))


def _first(found: re.Match[str] | None) -> str:
    return next((each for each in found.groups() if each), "") if found else ""
