"""Finders of secrets in text: tokens by their format, private keys, passwords in addresses, values of secret names.

Formats are detect-secrets' rules, and some that it doesn't know. They are looked for around long runs of letters and
digits only, and no farther than a token is long: a model may write anything, and rules that are quick on a line can
take hours on a megabyte.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from koderz_tracker.plain_text import REDACTED, RUN_LENGTH, WORDS, may_hold_tokens

Span = tuple[int, int]

# characters of the same line, beside the beginning of a run, that rules are shown
_BEFORE, _BEHIND = 64, 1024

_RUN = re.compile(rf"[A-Za-z0-9_-]{{{RUN_LENGTH},}}")
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
      | (?: tgp_v1_ | wandb_v1_ | jina_ | esecret_ | psk- | glhf_ | vck_ | pcsk_ | sb_secret_ ) [\w-]{20,}
      | (?: rpa_ | e2b_ | dtn_ | flp_ ) [A-Za-z0-9]{30,}
      | cpk_ [\w-]{16,} \. [\w-]{8,} (?: \. [\w-]{8,} )?                     # Chutes
      | bce-v3/ [\w-]{8,} / [\w-]{20,}                                     # Baidu
      | bedrock-api-key- [\w+/=-]{30,}
    )
  | (?<![\w/+-])(?:                      # short beginnings, which ordinary text and base64 have, too
        (?: AQ\. | ABSK | BSA ) (?=[\w-]{16})(?=[\w-]*[0-9])(?=[\w-]*[a-z])(?=[\w-]*[A-Z]) [\w+/=-]{24,}
      | pa- (?=[\w-]*[0-9])(?=[\w-]*[a-z])(?=[\w-]*[A-Z]) [\w-]{32,}
      | secret_ (?:[\w-]{1,64}_)? [0-9a-f]{32} \. [A-Za-z0-9]{24,}          # Lambda
      | (?: fw | sk | pb | up | key | secret )_ (?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z]) [A-Za-z0-9]{20,} (?![\w-])
      | fc- [0-9a-f]{32} (?![\w-])                                         # Firecrawl
      | [0-9a-f]{32} \. (?=[A-Za-z]*[0-9])(?=[0-9a-z]*[A-Z]) [A-Za-z0-9]{16} (?!\w)   # Zhipu
      | pat[A-Za-z0-9]{14} \. [0-9a-f]{64} (?!\w)                          # Airtable
    )""",
    re.VERBOSE | re.ASCII,
)
_PAIR = re.compile(r"(?<![\w.+-])([A-Za-z0-9]{8,40})\.([\w-]{24,80})(?![\w-])", re.ASCII)
"""`ID.SECRET`, as Baseten, Ollama and others have it, and as attributes, files and versions are written, too."""
_PIECE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+|[_-]+")
_AWS_SECRET = re.compile(
    r"""(?<![^\s"'`=:,({\[<>])(?=\S{0,39}[0-9])(?=\S{0,39}[A-Z])(?=\S{0,39}[a-z])[A-Za-z0-9/+]{40}(?![^\s"'`:,;.)}\]<>])"""
)
_DRAWN = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])(?![0-9a-f]+(?![A-Za-z0-9]))[A-Za-z0-9]{12,}",
    re.ASCII,
)
"""A run of letters and digits that looks random; digests and names with a number in them are not matched."""
_CUT = re.compile(
    r"(?:(?<=\.\.\.)|(?<=…)|(?<=… ))[\w+/-]{12,}|(?<![\w+/-])[\w+/-]{12,}(?=\.\.\.| ?…)", re.ASCII
)
"""The beginning or end of a run of letters that was shortened in its middle, as in a judge's messages."""
_CUT_HEX = re.compile(
    r"(?:(?<=\.\.\.)|(?<=…)|(?<=… ))(?:\w{0,8}[_-])?[0-9a-f]{20,}|\b(?:\w{1,8}_)?[0-9a-f]{20,}(?=\.\.\.| ?…)"
)
# bits a character: names and paths have less, and forty that were drawn at random 4.8
_RANDOM = 4.3
# none, or found otherwise
_UNUSED = frozenset({"Public IP (ipv4)", "Private Key", "Basic Auth Credentials"})

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----|\Z)"
    # of one cut before it
    r"|(?<![\w+/=\\\s])[\w+/=\\\s]{0,8000}-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----",
    re.DOTALL,
)
_URL_CREDENTIALS = re.compile(
    r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://([^/\s@\"']{1,512})@", re.IGNORECASE
)
_AUTHORIZATION = re.compile(
    r"""(?:\bauthorization["']?\s*[:=]\s*["']?(?:[a-z][a-z0-9-]{1,20}\s+)?|\bbearer\s+|\bapi-key\s+)"""
    r"""([A-Za-z0-9+/=._~-]{8,})""",
    re.IGNORECASE,
)
_NAME = (
    r"[A-Za-z0-9_-]*(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|passphrase"
    r"|(?:access|private|account|subscription)[_-]?key|credentials?|token|(?-i:[A-Z0-9]_KEY))"
)
_ASSIGNED = re.compile(
    rf"""(?<![A-Za-z0-9_-])({_NAME})(\\{{0,8}}["']|)((?:(?<=["'])\])?[ \t]*[:=][ \t]*)"""
    r"""(?:(\\{0,8}["'])(.{0,4096}?)\4|([^\s"',;&)\]}]+))""",
    re.IGNORECASE,
)
_CALLED = re.compile(
    rf"""(?:env|setdefault)\(\s*(\\{{0,8}}["']){_NAME}\1\s*,\s*(\\{{0,8}}["'])(.{{4,4096}}?)\2""",
    re.IGNORECASE,
)
"""As in `os.environ.setdefault("API_KEY", "…")`, or `putenv` and `setenv` in its place."""
_OPTION = re.compile(
    r"""(?<![\w-])--?(?:[a-z-]*-)?(?:api-?key|token|secret|password|access-key)[ =]+["']?([^\s"'$<{-][^\s"']{7,})""",
    re.IGNORECASE,
)
_QUERY = re.compile(
    r"""(?:[?&;]|(?:\b|(?<=\\[nrt]))(?:sig|session|auth)(?==))(?:[\w.-]*(?:key|sig|signature|session|auth|code)=|=)([\w%+/=.~-]{12,})"""
)
_SPOKEN = re.compile(
    r"""\bpass(?:word|phrase|wd)\s+is\s+["']?((?=[^\s"']*[\d\W])[^\s"',;]{6,})""", re.IGNORECASE
)
SECRET_NAME = re.compile(rf"{_NAME}|authorization|cookie", re.IGNORECASE)
_TELLING = re.compile(
    r"(?:(?:api|access|private|account|subscription|secret|_)[_-]?key|token|secret|passw(?:or)?d|passphrase"
    r"|credentials?|authorization)\\{0,8}[\"']?(?:\]?[ \t]*[:=]|\s*,)|(?:bearer|api-key)\s"
    r"|[?&;][\w.-]*(?:key|sig|signature|session|auth|code)=|(?:sig|session|auth)="
    r"|-(?:api-?key|token|secret|password)[ =]|\bpass(?:word|phrase|wd)\s+is\s"
)
"""A quick test: without a match in the lower-cased text, no pattern of names can match."""
_TELLING_WORDS = (*(word for word in WORDS if word != "cookie"), "signature=", "code=")
"""One of these is in each match of `_TELLING`: looking for them takes a twentieth of the time."""
# a name, an attribute, the beginning of more
_CODE = re.compile(r"[A-Za-z_][A-Za-z_.]*(?:[\[({].*)?|[\[({].*")
_CONSTANTS = frozenset({"None", "True", "False", "null", "true", "false", "..."})


def tokens(text: str) -> list[Span]:
    """The spans of tokens and keys, in order."""
    spans: list[Span] = []
    if not may_hold_tokens(text):
        return spans
    done = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if end <= done:
            continue
        first = max(done, text.rfind("\n", max(0, start - _BEFORE), start) + 1, start - _BEFORE)
        last = text.find("\n", start, start + _BEHIND)
        last = min(start + _BEHIND, len(text)) if last < 0 else last
        done = last
        spans += _in_line(text, first, last)
    return spans


def _in_line(text: str, first: int, last: int) -> list[Span]:
    spans = [
        match.span() for find in (_PREFIXED, _CUT_HEX) for match in find.finditer(text, first, last)
    ]
    line = text[first:last]
    if _DRAWN.search(line):
        spans += [
            match.span()
            for match in _AWS_SECRET.finditer(text, first, last)
            if _is_random(match[0])
        ]
        spans += [match.span() for match in _PAIR.finditer(text, first, last) if _is_pair(match)]
        spans += [
            match.span() for match in _CUT.finditer(text, first, last) if _DRAWN.search(match[0])
        ]
        spans += [_secret(match, first) for rule in _rules() for match in rule.finditer(line)]
    return sorted((start, _end_of_run(text, end)) for start, end in spans)


def _end_of_run(text: str, at: int) -> int:
    rest = _REST.match(text, at)
    return rest.end() if rest else at


def _is_random(text: str) -> bool:
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts) > _RANDOM


def _is_pair(match: re.Match[str]) -> bool:
    """Whether both parts are drawn at random, where attributes, files and versions are made of words and numbers."""
    name, secret = match.groups()
    has_digits = any(map(str.isdigit, secret))
    if not any(map(str.islower, secret)) or not any(map(str.isupper, secret)):
        return False
    # Of what is drawn, letters of a case and digits alternate after fewer than two characters on average.
    pieces = _PIECE.findall(secret)
    words = sum(len(piece) for piece in pieces if len(piece) > 3 and piece.isalpha())
    is_drawn = len(secret) < (3 if has_digits else 2.4) * len(pieces) and 2 * words <= len(secret)
    return is_drawn and len(name) < 4.5 * len(_PIECE.findall(name))


def _secret(match: re.Match[str], offset: int) -> Span:
    """The span of the match's group that is the secret, else of the whole match without its border."""
    group = max(
        range(len(match.groups()) + 1),
        key=lambda number: number and len(match[number] or "") >= RUN_LENGTH,
    )
    start, end = match.span(group)
    found = match[group]
    start += len(found) - len(found.lstrip(" \t\"'=:"))
    end -= len(found) - len(found.rstrip(" \t\"'"))
    return offset + start, offset + end


@functools.cache
def _rules() -> list[re.Pattern[str]]:
    """The rules of detect-secrets. Loading them takes a sixth of a second, and few runs have a text that needs them."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    kinds: dict[str, type] = get_mapping_from_secret_type_to_class()
    used = [
        kind
        for name, kind in kinds.items()
        if issubclass(kind, RegexBasedDetector) and name not in _UNUSED
    ]
    return [rule for kind in used for rule in kind().denylist]


def private_keys(text: str) -> Sequence[Span]:
    """The spans of whole private keys."""
    return [match.span() for match in _PRIVATE_KEY.finditer(text)] if "PRIVATE KEY" in text else ()


def user_parts(text: str) -> Sequence[Span]:
    """The spans of credentials in addresses: `user:password` or a token."""
    return (
        [match.span(1) for match in _URL_CREDENTIALS.finditer(text)]
        if "@" in text and "://" in text
        else ()
    )


def named_values(text: str) -> Sequence[Span]:
    """The spans of values whose names, such as `password`, say that they are secret."""
    lowered = text.lower()
    if not any(word in lowered for word in _TELLING_WORDS) or not _TELLING.search(lowered):
        return ()
    spans = [
        match.span(1)
        for find in (_AUTHORIZATION, _OPTION, _SPOKEN)
        for match in find.finditer(text)
    ]
    spans += [match.span(3) for match in _CALLED.finditer(text)]
    spans += [match.span(1) for match in _QUERY.finditer(text) if _is_drawn(match[1])]
    spans += [
        match.span(5 if match[4] else 6) for match in _ASSIGNED.finditer(text) if _is_secret(match)
    ]
    return sorted(spans)


def _is_drawn(value: str) -> bool:
    """Whether a value has both letters and digits, as random values do."""
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def _is_secret(match: re.Match[str]) -> bool:
    """Whether an assigned value is more likely a secret than a word or a piece of code."""
    name, name_quote, sign, quote, quoted, bare = match.groups()
    value = quoted if quote else bare
    if REDACTED in value or value.lower() == name.lower() or value in _CONSTANTS:
        return False
    if not quote and (name_quote or "(" in bare):  # JSON's numbers; a call
        return False
    if not quote and sign[0] in " \t" and _CODE.fullmatch(bare):  # as in `password = given`
        return False
    if name.lower().endswith("token") and not name.isupper():
        return len(value) >= 16 or (len(value) >= 6 and any(map(str.isdigit, value)))
    return len(value) >= 4


FINDERS: Sequence[Callable[[str], Sequence[Span]]] = (
    private_keys,
    user_parts,
    tokens,
    named_values,
)
"""All finders, in the order in which they are applied."""
