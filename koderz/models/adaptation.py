"""Adaptation to a model: parameters that it refuses are found once and left out of later requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koderz.models.faults import Refused
    from koderz.models.wire import Wire

# A value out of its range is the user's to mend: to drop it would be another experiment than was asked for.
_RANGE = re.compile(
    r"invalid value|must be|between|greater|less than|out of range|too (large|small|long|many)|[<>]=?|(max|min)imum",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|(not|n't) (support|permit|allow)|deprecated|unknown|unrecogni[sz]ed|only|cannot both|no longer",
    re.IGNORECASE,
)
_MOST_TOKENS = re.compile(r"> (\d+), which is the maximum|at most (\d+) completion tokens", re.IGNORECASE)


class Change(NamedTuple):
    """One change to a request: a parameter left out, renamed, or lowered."""

    parameter: str
    other_name: str = ""
    most: int | None = None

    def __str__(self) -> str:
        if self.other_name:
            return f"{self.parameter} sent as {self.other_name}"
        return f"{self.parameter} dropped" if self.most is None else f"{self.parameter} lowered to {self.most}"

    def made(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Applies the change to a request."""
        changed = {name: value for name, value in request.items() if name != self.parameter}
        if self.other_name:
            changed[self.other_name] = request[self.parameter]
        elif self.most is not None:
            changed[self.parameter] = self.most
        return changed

    def concerns(self, request: Mapping[str, Any]) -> bool:
        """Whether the change would affect the request."""
        value = request.get(self.parameter)
        return value is not None and (self.most is None or value > self.most)


class Adaptation:
    """The changes that one model needs, in the order in which they were found."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._changes = [Change(name) for name in wire.lacking]

    def fit(self, request: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The request with all known changes, and a description of those that applied."""
        made: list[str] = []
        for change in self._changes:
            if change.concerns(request):
                request = change.made(request)
                made.append(str(change))
        return request, tuple(made)

    def learn(self, refused: Refused, sent: Mapping[str, Any]) -> str:
        """Learns the change that a refusal asks for and describes it; raises the refusal if no change would help.

        Several calls may be refused for the same reason at once: for all but the first the answer is empty.
        """
        change = self._change(refused, sent)
        if change is None:
            raise refused
        if change in self._changes:
            return ""
        self._changes.append(change)
        return str(change)

    def _change(self, refused: Refused, sent: Mapping[str, Any]) -> Change | None:
        words = str(refused)
        parameter = self._culprit(refused, sent)
        limit = _MOST_TOKENS.search(words)
        if limit and "tokens" in parameter:
            change = Change(parameter, most=int(limit[1] or limit[2]))
            return change if change.concerns(sent) else None
        if not parameter or (_RANGE.search(words) and not _UNSUPPORTED.search(words)):
            return None
        renamed = any(change.other_name == parameter for change in self._changes)
        return Change(parameter, other_name="" if renamed else self._wire.other_names.get(parameter, ""))

    def _culprit(self, refused: Refused, sent: Mapping[str, Any]) -> str:
        """The parameter that a refusal names; empty if it names none."""
        sent_ones = [name for name in self._wire.parameters if name in sent]
        if refused.parameter in sent_ones:
            return refused.parameter
        words = str(refused)
        places = {name: found.start() for name in sent_ones if (found := _named(name).search(words))}
        if "top_p" in places and "both" in words:
            return "top_p"  # of two that exclude each other, the one that matters less
        return min(places, key=places.__getitem__, default="")


def _named(parameter: str) -> re.Pattern[str]:
    """A pattern for a parameter's name in a message; one that is an English word has to be quoted."""
    return re.compile(r"""['"`]stop['"`]""" if parameter == "stop" else rf"\b{parameter}\b")
