r"""Answers in LaTeX boxes, compared as MATH's authors compare them.

Hendrycks et al., "Measuring mathematical problem solving with the MATH dataset" (2021), modeling/math_equivalence.py.
"""

from __future__ import annotations

import re

_UNITS = "\\text{ "
_END_OF_FORMULA = re.compile(r"(?<!\\)\$|\\[)\]]")
_MOST_CHARACTERS = 100_000  # of an answer that is compared


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, else of the last `\fbox{…}`; None if there is none that is closed.

    The braces may stand after spaces. Of a box without braces, as in `$\boxed 5$`, the content is
    what stands between the space and the end of the formula, as in the `last_boxed_only_string` of
    EleutherAI's lm-evaluation-harness; the one of MATH's authors reads braces alone.
    """
    for command in ("\\boxed", "\\fbox"):
        start = text.rfind(command)
        if start < 0:
            continue
        after = text[start + len(command) :]
        inner = after.lstrip()
        if inner.startswith("{"):
            return _braced(inner, 0)
        # Without a space the command would have another name, such as `\boxedminipage`.
        return _END_OF_FORMULA.split(inner, maxsplit=1)[0].strip() or None if after != inner else None
    return None


def _braced(text: str, start: int) -> str | None:
    """The content of the braces that begin at `start`; None if none do, or they aren't closed."""
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return text[start + 1 : found.start()]
    return None


def equivalent(one: str, other: str) -> bool:
    """Whether two answers are the same when normalised; where that fails for one, whether they are the same text."""
    if max(len(one), len(other)) > _MOST_CHARACTERS:
        return one == other
    try:
        return normalised(one) == normalised(other)
    except ValueError:
        return one == other


def normalised(answer: str) -> str:
    """The answer in MATH's normal form. Raises ValueError where the authors' code fails."""
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for absent in ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$"):
        text = text.replace(absent, "")
    text = _without_units(text).replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text.startswith("."):
        text = f"0{text}"
    left, *right = text.split("=")
    if len(right) == 1 and len(left) <= 2:
        text = right[0]
    text = _with_fractions(_with_roots(text).replace(" ", ""))
    return _as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _without_units(text: str) -> str:
    before, *after = text.split(_UNITS)
    if len(after) > 1:
        raise ValueError("two units")
    return before


def _with_roots(text: str) -> str:
    r"""The text with `\sqrt{3}` for `\sqrt3`."""
    first, *others = text.split("\\sqrt")
    if not all(others):
        raise ValueError("a root of nothing")
    return first + "".join(f"\\sqrt{each if each[0] == '{' else f'{{{each[0]}}}{each[1:]}'}" for each in others)


def _with_fractions(text: str) -> str:
    r"""The text with `\frac{1}{2}` for `\frac12` and `\frac1{2}`."""
    first, *others = text.split("\\frac")
    made = first
    for each in others:
        if not each:
            raise ValueError("a fraction of nothing")
        if each[0] == "{":
            made += f"\\frac{each}"
        elif len(each) < 2:
            return text
        else:
            below = each[1:] if each[1] == "{" else f"{{{each[1]}}}{each[2:]}"
            made += f"\\frac{{{each[0]}}}{below}"
    return made


def _as_fraction(text: str) -> str:
    r"""`\frac{a}{b}` for the text `a/b` of two whole numbers; else the text."""
    above, *below = text.split("/")
    if len(below) != 1:
        return text
    try:
        a, b = int(above), int(below[0])
    except ValueError:
        return text
    return f"\\frac{{{a}}}{{{b}}}" if text == f"{a}/{b}" else text
