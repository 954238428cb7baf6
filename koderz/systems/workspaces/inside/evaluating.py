"""Scripts of a verifier's that make code of the texts that they read, by the words in them."""

from __future__ import annotations

import os
import re

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
