"""Scripts of a verifier's that make code of the texts that they read, by the words in them."""

from __future__ import annotations

import os
import re

_SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "ash", "busybox")
_START = r"(?:^|[;&|({]|\b(?:then|do|else|exec|time|if|while|until)\b|!)\s*"  # of a command
_COMMENTS = re.compile(r"(?:^|\s)#[^\n]*")

_IN_SHELLS = re.compile(
    rf"{_START}(?:(?:builtin|command)\s+)?(eval)\b"
    rf"|{_START}(trap)\b[^\n]*[$`]"
    rf"|{_START}(?:source|\.)\s+(<\(|/dev/|/proc/)"
    rf"|{_START}(\$\((?!\()|`)"
    r"|\b(BASH_ENV|ENV|PYTHONSTARTUP|PROMPT_COMMAND)=",
    re.MULTILINE,
)
_SETTINGS = re.compile(r"\b(?:BASH_ENV|ENV|PYTHONSTARTUP|PROMPT_COMMAND)=")
_SOURCED = re.compile(rf"{_START}(?:source|\.)\s+(\S+)", re.MULTILINE)
_PERHAPS_IN_SHELLS = re.compile(
    rf"(\(\()|\[\[[^\n]*?(-(?:eq|ne|lt|le|gt|ge|v))\b|{_START}(\$\w+|\"\$\w+\"|\$\{{\w+\}})(?=\s|$)", re.MULTILINE
)
_IN_PYTHON = re.compile(
    r"(?<![.\w])(exec|eval|compile|__import__)\s*\("
    r"|\b(runpy|importlib|pickle|cloudpickle|dill|joblib|marshal|shelve|jsonpickle)\b"
    r"|\b(yaml\.(?:unsafe_load|full_load|load)|torch\.load|numexpr|sympify|parse_expr)\b"
    r"|\b(allow_pickle\s*=\s*True|InteractiveInterpreter|InteractiveConsole|from_string)\b"
)
_ELSEWHERE = re.compile(
    r"\b(eval|instance_eval|class_eval|require|load|loadstring|dofile|exec|system|Function|vm|import|do)\b"
)


def evaluates(program: str, script: str, opened: str = "") -> str:
    """The word by which a program's script makes code of what it reads; empty if there is none.

    `opened`: the file that it has just opened, which a shell may do for `source`.
    """
    if _is_shell(program):
        script = _COMMENTS.sub("", script)
        if opened and any(_may_name(word, opened) for word in _SOURCED.findall(script)):
            return "source"
        return _first(_IN_SHELLS.search(script))
    if program.startswith(("python", "pypy")):
        return _first(_IN_PYTHON.search(script))
    if re.fullmatch(r"(?:node|nodejs|deno|bun|ruby|perl|php|lua|tclsh|Rscript|julia)[\d.]*", program):
        return _first(_ELSEWHERE.search(script))
    return ""


def sets_settings(script: str) -> bool:
    """Whether a shell's script names files that the programs which it starts run first."""
    return bool(_SETTINGS.search(script))


def may_evaluate(program: str, script: str) -> str:
    """The words by which a shell makes code of some texts alone: arithmetic, and commands that are variables."""
    return _first(_PERHAPS_IN_SHELLS.search(_COMMENTS.sub("", script))) if _is_shell(program) else ""


def _is_shell(program: str) -> bool:
    return program.rstrip("0123456789.") in _SHELLS


def _may_name(word: str, path: str) -> bool:
    """Whether a word of a shell can stand for a path."""
    word = word.strip("\"';")
    name = os.path.basename(word)
    return name == os.path.basename(path) or bool(re.search(r"[$*?\[`]", name))


def _first(found: re.Match[str] | None) -> str:
    return next((each for each in found.groups() if each), "") if found else ""
