"""A summary's part on calibration: the confidence that answers state against how often they are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koderz_tracker.parts import Part

if TYPE_CHECKING:
    from koderz_tracker.records import Plan
    from koderz_tracker.results import Result

_BIN = 100  # answers


class Calibration(Part):
    """The summary's key `calibration`."""

    def summary(self, plan: Plan, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:  # noqa: ARG002
        """For each arm with stated confidences: the calibration error in points and the number of answers."""
        found: dict[str, Any] = {}
        for arm, of_arm in results.items():
            pairs = [((each.metrics or {}).get("confidence"), each.success) for each in of_arm]
            claimed = [
                (confidence, success) for confidence, success in pairs if confidence is not None
            ]
            if claimed:
                found[arm] = {
                    "error": calibration_error(claimed),
                    "answers": len(claimed),
                    "bins": "all",
                }
        return found


def calibration_error(answers: Sequence[tuple[float, bool]]) -> float:
    """The calibration error in points: root mean square of stated confidence (per cent) less the share that is right.

    After Hendrycks et al., as BrowseComp-Plus has it: by bins of 100 in order of confidence, the last one stretched to
    the end. All bins count, unlike in its own loop, which leaves out the last one and so has 0 for fewer than 200.
    """
    ranked = sorted(answers)
    starts = range(0, max(_BIN, len(ranked) - len(ranked) % _BIN), _BIN)
    total = 0.0
    for start in starts:
        members = ranked[start:] if start == starts[-1] else ranked[start : start + _BIN]
        claimed = sum(confidence for confidence, _ in members) / len(members)
        right = 100 * sum(correct for _, correct in members) / len(members)
        total += len(members) / len(ranked) * (claimed - right) ** 2
    return float(total**0.5)


CALIBRATION = Calibration()
