"""The steps within experiments as log lines: turns, sub-calls and cells of a recursion, attempts, outcomes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from koderz.plans.ids import planned_ids
from koderz.runs.observer import NullObserver, SessionView
from koderz_tracker import records


class Steps:
    """Turns the lines of one run's journal into text, without anything that a model wrote."""

    def __init__(self, plan: records.Plan) -> None:
        self._names = {experiment_id: (task, arm) for experiment_id, task, arm, _ in planned_ids(plan)}
        self._turns: Counter[str] = Counter()

    def tell(self, line: Mapping[str, Any]) -> str:
        """A line of the journal as text; empty for one without news."""
        experiment = str(line.get("experiment_id"))
        match line.get("kind"):
            case "call" if line.get("depth") or line.get("purpose") in ("root", "final"):
                said = self._call(experiment, line)
            case "once" if isinstance(line.get("value"), Mapping) and "code" in line["value"]:
                value = line["value"]
                calls = f", {value['calls']} sub-calls" if value.get("calls") else ""
                failed = f", {str(value['error']).partition(':')[0]}" if value.get("error") else ""
                said = f"{line['name']}: {value.get('seconds', 0.0):.2f} s in {value.get('container')}{calls}{failed}"
            case "attempt":
                said = f"attempt {line.get('number')} {line.get('verdict')}{_cause(line)}"
            case "experiment":
                attempts = int(line.get("iterations") or 0)
                after = f"{attempts} attempt{'s' * (attempts != 1)}"
                said = f"ended {line.get('verdict')}{_cause(line)} after {after}, ${line.get('cost', 0.0):.4f}"
            case "fault":
                said = f"fault: {line.get('reason')}"
            case _:
                return ""
        task, arm = self._names.get(experiment, (str(line.get("problem_id")), str(line.get("solver"))))
        return f"{task} {arm}: {said}"

    def tell_record(self, record: records.Record) -> str:
        """A new record as text."""
        return self.tell(records.as_dict(record))

    def _call(self, experiment: str, line: Mapping[str, Any]) -> str:
        depth, purpose = line.get("depth") or 0, line.get("purpose")
        if purpose == "root":
            self._turns[experiment] += 1
            purpose = f"turn {self._turns[experiment]}"
        tokens = f"{line.get('tokens_in', 0):,} tokens in, {line.get('tokens_out', 0):,} out"
        return f"{purpose}, depth {depth} (call {line.get('call')}): {tokens}, {line.get('latency', 0.0):.1f} s"


class StepLog(NullObserver):
    """Logs the steps to the logger `koderz`."""

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        self._steps = Steps(view.plan.record)
        return super().showing(view)

    def recorded(self, record: records.Record) -> None:
        if said := self._steps.tell_record(record):
            logging.getLogger("koderz").info("%s", said)


def _cause(line: Mapping[str, Any]) -> str:
    return f" ({line['cause']})" if line.get("cause") else ""
