"""An experiment as an MLflow trace: a span for each attempt, with its model calls and its judging inside.

What it is judged by are assessments, as `mlflow.genai.evaluate` has them, so that MLflow shows scores as columns.
A fault is no verdict: its trace has the state ERROR, and no assessment that a chart of quality would count.
Trace, span and assessment ids are digests of what they stand for, so that telling the same story again
changes nothing, whoever does it and however often.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson

from koderz_tracker.messages import text_of
from koderz_tracker.parts import Step, from_parts
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Once, Plan, Record
from koderz_tracker.sinks.mlflow.page import (
    begun,
    child_name,
    clean,
    cleaned,
    cleaned_tag,
    milliseconds,
    scores_of,
    source_tags,
    word_of,
)

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

_TEXT = 100_000  # characters of one text in a span; all of it is in the journal
_PREVIEW, _TAG, _NAME = 1000, 8000, 250  # characters that a column of MLflow's holds
_NANO = 1_000_000  # nanoseconds in a millisecond


def trace_id(plan: Plan, place: str, experiment_id: str) -> str:
    """The id of an experiment's trace in a place (one of MLflow's experiments); the same for every caller."""
    return f"tr-{_digest(f'{place}/{plan.run_id}/{experiment_id}', 16)}"


def trace_of(
    plan: Plan, story: Sequence[Record], outcome: Experiment | Fault, *, place: str, run: str
) -> tuple[TraceInfo, list[Span]]:
    """The trace with its assessment, and its spans. `place` and `run`: MLflow's ids of its experiment and run."""
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState

    name = trace_id(plan, place, outcome.experiment_id)
    start, end = begun(story[0]), milliseconds(outcome.time)
    # MLflow pairs the traces of two runs by the column Input, so its text is the same in all arms.
    question = plan.basis.questions.get(outcome.problem_id)
    if not question:
        request_preview = as_json(_inputs(plan, outcome))[:_PREVIEW]
    else:
        sample = f" · sample {outcome.sample}" if plan.samples > 1 else ""
        request_preview = clean(f"{outcome.problem_id}{sample}: {question}")[:_PREVIEW]
    tags = {
        **cleaned_tag(*story),
        "mlflow.traceName": child_name(plan, outcome),
        "benchmark_run_id": plan.run_id or "",
        "koderz.experiment_id": outcome.experiment_id,
        "koderz.outcome": word_of(outcome),
        "koderz.cause": outcome.cause,
        **(
            {"koderz.iterations": str(outcome.iterations)}
            if isinstance(outcome, Experiment)
            else {}
        ),
        "koderz.simulated": str(plan.is_simulated(outcome.arm)).lower(),
        "problem_id": outcome.problem_id,
        "solver": outcome.solver,
        "arm": outcome.arm,
    }
    info = TraceInfo(
        trace_id=name,
        trace_location=TraceLocation.from_experiment_id(place),
        request_time=start,
        execution_duration=max(0, end - start),
        state=TraceState.ERROR if isinstance(outcome, Fault) else TraceState.OK,
        request_preview=request_preview,
        response_preview=clean(_answer(story, outcome)[:_PREVIEW]),
        client_request_id=outcome.experiment_id,
        trace_metadata={
            key: clean(value)[:_TAG] for key, value in _metadata(plan, story, run).items()
        },
        tags={key: clean(value)[:_TAG] for key, value in tags.items()},
        assessments=list(_assessments(plan, name, story, outcome, run)),
    )
    return info, [Span.from_dict(span) for span in _Spans(name, plan, story, outcome).all()]


def expectations_of(plan: Plan, task_id: str) -> Mapping[str, Any]:
    """The expected answer to a task, by MLflow's names; empty if the suite declares none."""
    return plan.basis.expectations.get(task_id, {})


def as_json(value: Any) -> str:
    """A value as clean text for MLflow's fields: JSON, or `str()` of what JSON can't hold."""
    return orjson.dumps(cleaned(value), default=str).decode()


def _metadata(plan: Plan, story: Sequence[Record], run: str) -> dict[str, str]:
    calls = [record for record in story if isinstance(record, Call)]
    tokens_in, tokens_out = (
        sum(call.tokens_in for call in calls),
        sum(call.tokens_out for call in calls),
    )
    tags = source_tags(plan)
    return {
        "mlflow.sourceRun": run,
        "mlflow.trace.tokenUsage": as_json(_usage(tokens_in, tokens_out)),
        "mlflow.trace.cost": as_json(_cost(sum(call.cost for call in calls))),
        **{
            name: tags[name]
            for name in ("mlflow.user", "mlflow.source.name", "mlflow.source.type")
            if tags[name]
        },
    }


def judgement_ids(trace: str, story: Sequence[Record], names: Collection[str] = ()) -> set[str]:
    """The ids of all assessments that verdicts in the story may have left on its trace, except these `names`.

    Also those that earlier versions made, of whatever a verdict was measured by.
    """
    outcomes = [record for record in story if isinstance(record, Experiment)]
    known = {
        name
        for outcome in outcomes
        for name in ("passed", "score", "iterations", *(outcome.metrics or ()))
    }
    return {_assessment_id(trace, name) for name in known.difference(names)}


def _assessments(
    plan: Plan, trace: str, story: Sequence[Record], outcome: Experiment | Fault, run: str
) -> Iterator[Assessment]:
    """The scores of a judged experiment, and the expected answer if it is known."""
    from mlflow.entities import AssessmentSource, Expectation, Feedback

    time = milliseconds(outcome.time)
    common: dict[str, Any] = {
        "trace_id": trace,
        "span_id": _span_id(trace, "root"),
        "metadata": {"mlflow.assessment.sourceRunId": run},
        "create_time_ms": time,
        "last_update_time_ms": time,
    }
    authors = AssessmentSource(source_type="HUMAN", source_id=clean(plan.suite)[:_NAME])
    found: list[Assessment] = [
        Expectation(clean(name)[:_NAME], cleaned(_cut_text(value)), authors, **common)
        for name, value in expectations_of(plan, outcome.problem_id).items()
    ]
    if isinstance(outcome, Experiment):
        version = plan.environment.get("koderz") or ""
        author = f"koderz {plan.suite} judge {version}".strip()
        judge = AssessmentSource(source_type="CODE", source_id=clean(author)[:_NAME])
        scores: dict[str, Any] = scores_of(plan, outcome)
        rationales = {}
        if "passed" in scores:
            scores["passed"] = outcome.success
            last = next((record for record in reversed(story) if isinstance(record, Attempt)), None)
            why = str(last.detail or last.feedback) if last and not last.passed else ""
            rationales["passed"] = clean(f"{_verdict_words(outcome)}\n\n{why[:4000]}".strip())
        found += [
            Feedback(
                clean(name)[:_NAME], value, source=judge, rationale=rationales.get(name), **common
            )
            for name, value in scores.items()
        ]
    for assessment in found:
        assessment.assessment_id = _assessment_id(trace, assessment.name)
        yield assessment


def _assessment_id(trace: str, name: str) -> str:
    return f"a-{_digest(f'{trace}/{name}', 16)}"


def _verdict_words(outcome: Experiment | Fault) -> str:
    if isinstance(outcome, Fault):
        return f"fault: {outcome.reason}"
    cause = f": {outcome.cause}" if outcome.cause and outcome.cause != outcome.verdict else ""
    return f"{outcome.verdict}{cause}"


def _inputs(plan: Plan, outcome: Experiment | Fault) -> dict[str, Any]:
    """The trace's inputs: the fewest that tell traces of an arm apart, since MLflow pairs runs by them."""
    return {"problem_id": outcome.problem_id} | (
        {"sample": outcome.sample} if plan.samples > 1 else {}
    )


def _answer(story: Sequence[Record], outcome: Experiment | Fault) -> str:
    """The program judged last, else the last reply; for a fault, its reason."""
    if isinstance(outcome, Fault):
        return _verdict_words(outcome)
    replies = [record.reply for record in story if isinstance(record, Call)]
    programs = [
        record.program for record in story if isinstance(record, Attempt) and not record.task_id
    ]
    return next((str(text) for text in reversed([*replies, *programs]) if text), "")


class _Spans:
    """The spans of one story, as MLflow's `Span.from_dict` takes them."""

    def __init__(
        self, name: str, plan: Plan, story: Sequence[Record], outcome: Experiment | Fault
    ) -> None:
        self._trace, self._plan, self._story, self._outcome = name, plan, story, outcome

    def all(self) -> Iterator[dict[str, Any]]:
        """The root, then each attempt with its calls, recalls and judging, or the steps that a part declares."""
        yield self._root()
        if steps := from_parts(self._plan, lambda part: part.steps(self._story)):
            yield from (self._step(number, step) for number, step in enumerate(steps))
            return
        for number, records in enumerate(self._attempts(), 1):
            yield from self._attempt(number, records)

    def _attempts(self) -> Iterator[list[Record]]:
        """The story split after each verdict; records after the last one form an attempt without a verdict."""
        gathered: list[Record] = []
        for record in self._story:
            if isinstance(record, Call | Once | Attempt):
                gathered.append(record)
            if isinstance(record, Attempt):
                yield gathered
                gathered = []
        if gathered:
            yield gathered

    def _root(self) -> dict[str, Any]:
        outcome = self._outcome
        calls = [record for record in self._story if isinstance(record, Call)]
        asked = _inputs(self._plan, outcome) | ({"messages": _messages(calls[0])} if calls else {})
        answer: dict[str, Any] = {"verdict": _verdict_words(outcome), "cost": outcome.cost}
        if not isinstance(outcome, Fault):
            answer |= {
                "answer": _cut(_answer(self._story, outcome)),
                "iterations": outcome.iterations,
            }
        name, times = (
            child_name(self._plan, outcome),
            (begun(self._story[0]), milliseconds(outcome.time)),
        )
        error = outcome.reason if isinstance(outcome, Fault) else None
        return self._span(
            "root", name, "AGENT", times, parent=None, inputs=asked, outputs=answer, error=error
        )

    def _step(self, number: int, step: Step) -> dict[str, Any]:
        times = milliseconds(step.begun), milliseconds(step.ended)
        outputs = {name: _cut_text(value) for name, value in step.outputs.items()}
        return self._span(
            f"step/{number}", step.name, "CHAIN", times, inputs=step.inputs, outputs=outputs
        )

    def _attempt(self, number: int, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
        parent = f"attempt/{number}"
        judged = records[-1] if isinstance(records[-1], Attempt) else None
        name = f"attempt {judged.number if judged else number}"
        before, end = begun(records[0]), milliseconds(records[-1].time)
        outputs = {"verdict": judged.verdict, "cause": judged.cause} if judged else None
        yield self._span(
            parent, name, "CHAIN", (before, end), inputs={"attempt": number}, outputs=outputs
        )
        keys: dict[int | None, str] = {}  # of this attempt's calls
        for place, record in enumerate(records):
            key = f"{parent}/{place}"
            if isinstance(record, Call):
                yield self._call(key, record, keys.get(record.parent, parent))
                keys[record.call] = key
            elif isinstance(record, Attempt):
                yield self._judging(key, record, parent, before)
            elif isinstance(record, Once):
                span = (before, milliseconds(record.time))
                yield self._span(
                    key,
                    record.name,
                    "TOOL",
                    span,
                    parent=parent,
                    outputs=_cut(as_json(record.value)),
                )
                yield from self._tools(key, record.value)
            before = milliseconds(record.time)

    def _tools(self, parent: str, value: Any) -> Iterator[dict[str, Any]]:
        """The calls of MCP servers' tools in the record of an agent's work."""
        mcp = value.get("mcp") if isinstance(value, dict) else None
        for place, tool in enumerate(mcp["calls"] if isinstance(mcp, dict) else ()):
            begin = milliseconds(tool["begun"])
            span, error = (
                (begin, begin + round(tool["seconds"] * 1000)),
                tool["result"] if tool["is_error"] else None,
            )
            key, name = f"{parent}/{place}", f"{tool['server']}.{tool['tool']}"
            asked, told = _cut(tool["arguments"]), _cut(tool["result"])
            yield self._span(
                key, name, "TOOL", span, parent=parent, inputs=asked, outputs=told, error=error
            )

    def _call(self, key: str, call: Call, parent: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": _cut(call.reply)}
        if call.reasoning:
            message["reasoning_content"] = _cut(call.reasoning)
        model = call.answered_by or call.model
        name = call.model if call.purpose == "attempt" else f"{call.model} · {call.purpose}"
        return self._span(
            key,
            name,
            "CHAT_MODEL",
            (begun(call), milliseconds(call.time)),
            parent=parent,
            inputs={"messages": _messages(call), "model": call.model, **call.sampling},
            outputs={
                "model": model,
                "choices": [{"message": message, "finish_reason": call.finish_reason}],
            },
            attributes={
                "mlflow.chat.tokenUsage": _usage(call.tokens_in, call.tokens_out),
                "mlflow.llm.model": model,
                "mlflow.llm.cost": _cost(call.cost),
                "mlflow.message.format": "openai",
                "koderz.retries": call.retries,
                "koderz.tokens_reasoning": call.tokens_reasoning,
                "koderz.cost_source": call.cost_source or None,
                **({"koderz.depth": call.depth} if call.depth else {}),
            },
        )

    def _judging(self, key: str, attempt: Attempt, parent: str, before: int) -> dict[str, Any]:
        inputs = {"program": _cut(attempt.program or "")} | (
            {"task_id": attempt.task_id} if attempt.task_id else {}
        )
        verdict = {
            "verdict": attempt.verdict,
            "cause": attempt.cause,
            "feedback": _cut(attempt.feedback),
        }
        outputs = {name: value for name, value in verdict.items() if value} | dict(attempt.metrics)
        times, sandbox = (before, milliseconds(attempt.time)), {"koderz.sandbox": attempt.sandbox}
        return self._span(
            key,
            "judge",
            "EVALUATOR",
            times,
            parent=parent,
            inputs=inputs,
            outputs=outputs,
            attributes=sandbox,
        )

    def _span(
        self,
        key: str,
        name: str,
        kind: str,
        times: tuple[int, int],
        *,
        parent: str | None = "root",
        inputs: Any = None,
        outputs: Any = None,
        attributes: Mapping[str, Any] = MappingProxyType({}),
        error: str | None = None,
    ) -> dict[str, Any]:
        found = {
            "mlflow.traceRequestId": self._trace,
            "mlflow.spanType": kind,
            "mlflow.spanInputs": inputs,
            "mlflow.spanOutputs": outputs,
            **attributes,
        }
        return {
            "trace_id": _encoded(self._trace.removeprefix("tr-")),
            "span_id": _encoded(_span_id(self._trace, key)),
            "parent_span_id": _encoded(_span_id(self._trace, parent)) if parent else None,
            "name": clean(name),
            "start_time_unix_nano": times[0] * _NANO,
            "end_time_unix_nano": max(times) * _NANO,
            "status": {
                "code": "STATUS_CODE_ERROR" if error else "STATUS_CODE_OK",
                "message": clean(error or ""),
            },
            "attributes": {
                name: as_json(value) for name, value in found.items() if value is not None
            },
        }


def _messages(call: Call) -> list[dict[str, Any]]:
    return [
        {**message, "content": _cut(text_of({"content": message["content"]}))}
        for message in call.messages
    ]


def _usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


def _cost(total: float) -> dict[str, float]:
    return {"input_cost": 0.0, "output_cost": 0.0, "total_cost": total}


def _cut(text: Any) -> str:
    words = str(text)
    return (
        words
        if len(words) <= _TEXT
        else f"{words[:_TEXT]}\n… ({len(words)} characters; the journal has them all)"
    )


def _cut_text(value: Any) -> Any:
    """The value, shortened if it is a long text."""
    return _cut(value) if isinstance(value, str) else value


def _span_id(trace: str, key: str) -> str:
    return _digest(f"{trace}/{key}", 8)


def _digest(what: str, size: int) -> str:
    return hashlib.blake2b(what.encode(), digest_size=size).hexdigest()


def _encoded(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()
