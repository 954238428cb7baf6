"""The summary's count of right programs that the official harness refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz_tracker.parts import Part

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result

_FACT = "passed_as_process"


class ProcessPart(Part):
    """The number of failed results whose program passes as a plain process, by arm."""

    def of_arm(self, plan: Plan, arm: str, results: Sequence[Result]) -> Mapping[str, Any]:  # noqa: ARG002
        """The number; left out where no program was judged again."""
        judged = [each.facts[_FACT] for each in results if _FACT in each.facts]
        return {_FACT: sum(judged)} if judged else {}


PROCESS = ProcessPart()
