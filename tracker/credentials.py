"""Tokens and keys by their formats: detect-secrets' rules, and formats that it doesn't know.

They are looked for around long runs of letters and digits only, which few texts have, and no farther than a
token is long: a model may write anything, and rules that are quick on a line can take hours on a megabyte.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator

Span = tuple[int, int]

_RUN_LENGTH = 16  # characters of the shortest run that a token could be part of
_BEFORE, _BEHIND = 64, 1024  # characters of the same line, beside the beginning of a run, that rules are shown

_RUN = re.compile(rf"[A-Za-z0-9_-]{{{_RUN_LENGTH},}}")
_IN_RUNS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_CLASSES = bytes(ord("x") if code in _IN_RUNS else ord(" ") for code in range(256))
_REST = re.compile(r"[A-Za-z0-9_/+=-]*")

# Where detect-secrets knows a format too, it knows one length of it.
_PREFIXED = re.compile(
    r"""(?<![\w-])(?:
        (?: sk- | [srp]k_(?:live|test)_ | csk- | xai- | pplx- | tvly- | nvapi- | xox[abeoprs]- | xapp- ) [\w-]{13,}
      | (?: do[opr]_v1_ | dckr_[op]at_ | shp(?:at|ca|pa|ss)_ | glsa_ | glc_ | lsv2_ | lin_api_ | sbp_ | figd_ | ntn_
          | nfp_ | sntry[su]_ | phx_ | pul- | PMAK- | NRAK- | HRKU- | GOCSPX- | ATATT | AGE-SECRET-KEY-
          | gl(?:pat|dt|ft|soat|rt|cbt|ptt|agent|imt|oas)- ) [\w-]{12,}
      | github_pat_ \w{20,}
      | (?: hf_ | gsk_ | gh[oprsu]_ | EAA[A-Z] ) [A-Za-z0-9]{20,}
      | (?: npm_ | r8_ | AIza | dapi ) [\w-]{28,}
      | (?: ya29 | hvs | SG | dp\.pt ) \. [\w-]{16,} [\w.-]*
      | pypi- [\w-]{40,}
      | a[ks]- [A-Za-z0-9]{20,} \b                                          # Modal
      | A[KS]IA [A-Z0-9]{16} \b                                             # AWS
      | eyJrIjoi [A-Za-z0-9+/]{40,}                                         # Grafana
      | eyJ [\w-]{13,} \. [\w-]{8,} \. [\w-]{4,}                             # a JSON web token
    )""",
    re.VERBOSE | re.ASCII,
)
_AWS_SECRET = re.compile(
    r"""(?<![^\s"'`=:,({\[<>])(?=\S{0,39}[0-9])(?=\S{0,39}[A-Z])(?=\S{0,39}[a-z])[A-Za-z0-9/+]{40}(?![^\s"'`:,;.)}\]<>])"""
)
_DRAWN = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])(?![0-9a-f]+(?![A-Za-z0-9]))[A-Za-z0-9]{12,}", re.ASCII
)
"""Letters and digits as they are drawn at random; digests and names with a number in them are spared."""
_CUT = re.compile(r"(?:(?<=\.\.\.)|(?<=…)|(?<=… ))[\w+/-]{12,}|(?<![\w+/-])[\w+/-]{12,}(?=\.\.\.| ?…)", re.ASCII)
"""The beginning or end of something that was shortened in its middle, as a judge's messages are."""
_RANDOM = 4.3  # bits a character: names and paths have less, and forty that were drawn at random 4.8
_UNUSED = frozenset({"Public IP (ipv4)", "Private Key", "Basic Auth Credentials"})  # none, or found otherwise


def tokens(text: str) -> Iterator[Span]:
    """Where tokens and keys stand, from the first to the last."""
    if b"x" * _RUN_LENGTH not in text.encode("utf-8", "surrogatepass").translate(_CLASSES):
        return  # at the speed of a comparison of bytes
    done = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if end <= done:
            continue
        first = max(done, text.rfind("\n", max(0, start - _BEFORE), start) + 1, start - _BEFORE)
        last = text.find("\n", start, start + _BEHIND)
        last = min(start + _BEHIND, len(text)) if last < 0 else last
        done = last
        yield from _in_line(text, first, last)


def _in_line(text: str, first: int, last: int) -> list[Span]:
    spans = [match.span() for match in _PREFIXED.finditer(text, first, last)]
    line = text[first:last]
    if _DRAWN.search(line):
        spans += [match.span() for match in _AWS_SECRET.finditer(text, first, last) if _is_random(match[0])]
        spans += [match.span() for match in _CUT.finditer(text, first, last) if _DRAWN.search(match[0])]
        spans += [_secret(match, first) for rule in _rules() for match in rule.finditer(line)]
    return sorted((start, _end_of_run(text, end)) for start, end in spans)


def _end_of_run(text: str, at: int) -> int:
    rest = _REST.match(text, at)
    return rest.end() if rest else at


def _is_random(text: str) -> bool:
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts) > _RANDOM


def _secret(match: re.Match[str], offset: int) -> Span:
    """The group of the match that is the secret, else all of it, without what only borders on it."""
    group = max(range(len(match.groups()) + 1), key=lambda number: number and len(match[number] or "") >= _RUN_LENGTH)
    start, end = match.span(group)
    found = match[group]
    start += len(found) - len(found.lstrip(" \t\"'=:"))
    end -= len(found) - len(found.rstrip(" \t\"'"))
    return offset + start, offset + end


@functools.cache
def _rules() -> list[re.Pattern[str]]:
    """Those of detect-secrets, which takes a sixth of a second to load: few runs have a text that needs them."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    kinds: dict[str, type] = get_mapping_from_secret_type_to_class()
    used = [kind for name, kind in kinds.items() if issubclass(kind, RegexBasedDetector) and name not in _UNUSED]
    return [rule for kind in used for rule in kind().denylist]
