"""All calls to MLflow that the sink makes.

What runs have in common, the evaluation dataset of their suite and the versions of their prompts, is looked for
before it is made, under a lock of the results folder, so that neither another run nor a repeated projection adds any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from koderz_tracker.parts import FoundPrompt, from_parts
from koderz_tracker.records import Plan
from koderz_tracker.sinks import SinkDown
from koderz_tracker.sinks.mlflow.page import Page, Point, clean, cleaned
from koderz_tracker.sinks.mlflow.target import (
    Target,
    check_database,
    is_refusal,
    is_server,
    of_arm,
    short_reason,
)
from koderz_tracker.sinks.mlflow.trace import as_json, expectations_of

if TYPE_CHECKING:
    from mlflow.entities import EvaluationDataset, Run, Span, TraceInfo

_METRICS_A_CALL = 1000  # what the REST interface takes
_METRICS_WITH_OTHERS = 800
_PARAMS_A_CALL = 100
_RUNS_A_PAGE = 5000
_RECORDS_A_CALL = 1000
_VERSIONS = 1000  # of a prompt that are looked through, the newest first
_PARAM_CHARACTERS = 6000
_TAG_CHARACTERS = 8000
_DIGEST_CHARACTERS = 36
_NAME_CHARACTERS = 250
# the tag by which MLflow's UI shows a prompt with an experiment
_EXPERIMENTS = "_mlflow_experiment_ids"

T = TypeVar("T")


class MlflowStore:
    """One of MLflow's experiments in one tracking store. Raises MLflow's errors, so use it within `border`."""

    def __init__(self, target: Target) -> None:
        if not is_server(target.uri):
            check_database(target.uri)
        from mlflow import MlflowClient
        from mlflow.tracing.client import TracingClient

        self._client = MlflowClient(target.uri)
        self._traces = TracingClient(target.uri)
        self._uri = target.uri
        self.experiment = self._experiment(target)

    def find_run(self, identity: Mapping[str, str]) -> str | None:
        """MLflow's id of the run with these tags."""
        named = " AND ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
        query = f"{named} AND tags.`koderz.kind` = 'run'"
        found = self._client.search_runs(
            [self.experiment], query, max_results=1, order_by=["start_time ASC"]
        )
        return str(found[0].info.run_id) if found else None

    def find_nested(self, run_id: str) -> Iterator[tuple[str, str]]:
        """The outbox keys and ids of the runs below a run; a duplicate is deleted."""
        seen = set()
        for run in self._below(run_id):
            tags = run.data.tags
            is_arm = tags.get("koderz.kind") == "arm"
            name = (
                of_arm(tags.get("koderz.arm", "")) if is_arm else tags.get("koderz.experiment_id")
            )
            if name in seen:
                self._client.delete_run(run.info.run_id)
            elif name:
                seen.add(name)
                yield name, run.info.run_id
                if is_arm:
                    yield from self.find_nested(run.info.run_id)

    def _below(self, run_id: str) -> Iterator[Run]:
        query, token = f"tags.`mlflow.parentRunId` = '{run_id}'", None
        while True:
            page = self._client.search_runs(
                [self.experiment], query, max_results=_RUNS_A_PAGE, page_token=token
            )
            yield from page
            token = page.token
            if not token:
                return

    def retire(self, run_id: str) -> None:
        """Deletes a run and those below it; MLflow can restore them. Their traces stay."""
        for run in [*self._below(run_id)]:
            self._client.delete_run(run.info.run_id)
        self._client.delete_run(run_id)

    def layout(self, run_id: str) -> str | None:
        """The run's tag `koderz.layout`; None if the run doesn't exist any more."""
        run = self._get(run_id)
        is_there = run is not None and run.info.lifecycle_stage == "active"
        return str(run.data.tags.get("koderz.layout", "")) if run and is_there else None

    def create(self, page: Page) -> str:
        """Creates a run; returns its id."""
        tags, name = _tags(page.tags), clean(page.name)[:_NAME_CHARACTERS]
        run = self._client.create_run(
            self.experiment, start_time=page.start, tags=tags, run_name=name
        )
        return str(run.info.run_id)

    def tell(self, run_id: str, page: Page) -> None:
        """Updates the run to match the page. Repeating it changes nothing."""
        from mlflow.entities import Param, RunTag

        params = [
            Param(_key(key), clean(value)[:_PARAM_CHARACTERS]) for key, value in page.params.items()
        ]
        tags = [RunTag(key, value) for key, value in _tags(page.tags).items()]
        first = [_metric(point) for point in page.points[:_METRICS_WITH_OTHERS]]
        self._client.log_batch(run_id, first, params[:_PARAMS_A_CALL], tags[:_PARAMS_A_CALL])
        for some in chunks(params[_PARAMS_A_CALL:], _PARAMS_A_CALL):
            self._client.log_batch(run_id, params=some)
        for more in chunks(tags[_PARAMS_A_CALL:], _PARAMS_A_CALL):
            self._client.log_batch(run_id, tags=more)
        self.plot(run_id, page.points[_METRICS_WITH_OTHERS:])
        self._untag(run_id, {key for key, value in page.tags.items() if not value})
        if page.end is None:
            self._client.update_run(run_id, status=page.status)
        else:
            self._client.set_terminated(run_id, status=page.status, end_time=page.end)

    def plot(self, run_id: str, points: Iterable[Point]) -> None:
        """Adds points to the run's curves."""
        for some in chunks(map(_metric, points), _METRICS_A_CALL):
            self._client.log_batch(run_id, metrics=some)

    def keep(self, run_id: str, folder: Path) -> None:
        """Logs every file of the folder as an artifact of the run."""
        self._client.log_artifacts(run_id, str(folder))

    def register(self, run_ids: Sequence[str], plan: Plan) -> None:
        """Links runs with their evaluation dataset and the prompts of the plan, which are registered as needed."""
        import mlflow
        from mlflow.entities import Dataset, DatasetInput, InputTag

        mlflow.set_tracking_uri(self._uri)  # where MLflow's entities look for what belongs to them
        mlflow.set_experiment(experiment_id=self.experiment)
        suite, digest = self._dataset(plan), _dataset_digest(plan)[:_DIGEST_CHARACTERS] or "unknown"
        source, profile = (
            as_json({"dataset_id": suite.dataset_id}),
            as_json({"num_records": len(plan.tasks)}),
        )
        named = [
            (
                Dataset(suite.name, digest, "mlflow_evaluation_dataset", source, profile=profile),
                "evaluation",
            )
        ]
        for data in from_parts(plan, lambda part: part.data(plan)):
            profile = as_json({"num_rows": data.rows})
            named.append(
                (
                    Dataset(data.name, data.digest, "koderz", as_json({}), profile=profile),
                    data.context,
                )
            )
        inputs = [
            DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
            for dataset, context in named
        ]
        texts = plan.basis.prompts
        linked = [
            self._prompt(f"koderz.{name}", _as_template(text)) for name, text in texts.items()
        ]
        for run_id in run_ids:
            self._client.log_inputs(run_id, inputs)
            if linked:
                self._client.set_tag(run_id, "mlflow.linkedPrompts", as_json(linked))

    def register_found(self, prompts: Sequence[FoundPrompt]) -> None:
        """Registers prompts that a run has found; each becomes a version unless its text is registered already."""
        for prompt in prompts:
            self._prompt(
                prompt.name, [cleaned(dict(message)) for message in prompt.messages], prompt.tags
            )

    def trace(self, traces: Sequence[tuple[TraceInfo, Sequence[Span]]]) -> dict[str, str]:
        """Writes traces with our own ids, all spans at once. Writing them again changes nothing.

        Returns why those are missing that MLflow refuses, by their ids. Each is tried twice.
        """
        refused: dict[str, str] = {}
        for info, _ in traces:
            self._try(lambda: self._traces.start_trace(info), info.trace_id, refused)  # noqa: B023 called at once
        there = [(info, spans) for info, spans in traces if info.trace_id not in refused]
        together: dict[str, str] = {}
        if there:
            whole = [span for _, spans in there for span in spans]
            self._try(lambda: self._traces.log_spans(self.experiment, whole), "", together)
        for info, spans in there if together else ():  # one of them is refused: which?
            own = list(spans)
            self._try(lambda: self._traces.log_spans(self.experiment, own), info.trace_id, refused)  # noqa: B023
        return refused

    def _try(self, write: Callable[[], object], name: str, refused: dict[str, str]) -> None:
        """Writes something, and notes why it is refused. Raises the error if MLflow isn't at work."""
        from mlflow.exceptions import MlflowException

        for last in (False, True):
            try:
                write()
            except MlflowException as error:
                if not is_refusal(error):
                    raise
                self._client.get_experiment(self.experiment)  # raises an error unless it is at work
                if last:
                    refused[name] = short_reason(error)
            else:
                return

    def take_back(self, trace_id: str, assessment_ids: set[str]) -> None:
        """Deletes assessments, if they exist."""
        info = self._traces.get_trace_info(trace_id)
        there = {assessment.assessment_id for assessment in info.assessments}
        for assessment_id in assessment_ids & there:
            self._traces.delete_assessment(trace_id, assessment_id)

    def _dataset(self, plan: Plan) -> EvaluationDataset:
        """The suite's evaluation dataset, created if missing, with a record for each of the plan's tasks."""
        suite, digest = plan.suite, _dataset_digest(plan)
        name = f"{suite}-{digest[:8]}" if digest else suite
        query = f"name = '{name}'"
        found = self._client.search_datasets(
            [self.experiment], query, max_results=1, order_by=["created_time ASC"]
        )
        tags = {"koderz.suite": suite, "koderz.dataset_digest": digest}
        dataset = found[0] if found else self._client.create_dataset(name, self.experiment, tags)
        known = {record.inputs.get("problem_id") for record in dataset.records}
        source = {"source_type": "CODE", "source_data": {"suite": suite}}
        records = (
            cleaned(
                {"inputs": {"problem_id": task}, "expectations": dict(expectations_of(plan, task))}
            )
            | {"source": source}
            for task in plan.tasks
            if clean(task) not in known
        )
        for some in chunks(records, _RECORDS_A_CALL):
            dataset.merge_records(some)
        return dataset

    def _prompt(
        self,
        name: str,
        template: str | list[dict[str, str]],
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, str]:
        """Name and version of the registered prompt with this text; a new version if there is none."""
        known = self._client.get_prompt(name)
        before = (known.tags.get(_EXPERIMENTS) if known else None) or ","
        shown_with = before if f",{self.experiment}," in before else f"{before}{self.experiment},"
        versions = self._client.search_prompt_versions(name, max_results=_VERSIONS) if known else ()
        if same := [version.version for version in versions if version.template == template]:
            if shown_with != before:
                self._client.set_prompt_tag(name, _EXPERIMENTS, shown_with)
            return {"name": name, "version": str(min(same))}
        # MLflow would add the experiment too, in a thread; it leaves that be where it finds it done.
        made = self._client.register_prompt(name, template, tags={**tags, _EXPERIMENTS: shown_with})
        return {"name": name, "version": str(made.version)}

    def _untag(self, run_id: str, keys: set[str]) -> None:
        """Removes tags that don't apply any more."""
        run = self._get(run_id) if keys else None
        for key in keys & run.data.tags.keys() if run else ():
            self._client.delete_tag(run_id, key)

    def _get(self, run_id: str) -> Run | None:
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _experiment(self, target: Target) -> str:
        """MLflow's id of the experiment for runs of one suite, created if missing."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(target.experiment)
        if found is None:
            try:
                tags = {
                    "mlflow.experimentKind": "genai_development",
                    "mlflow.note.content": "Made by koderz: a run is a benchmark run, a trace one of its experiments.",
                }
                return str(
                    self._client.create_experiment(target.experiment, target.artifacts, tags)
                )
            except MlflowException as error:  # another process was faster
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._client.get_experiment_by_name(target.experiment)
        if found is None or found.lifecycle_stage != "active":
            raise SinkDown(
                f"MLflow's experiment {target.experiment} is deleted; restore it there, "
                "or name another with --mlflow-experiment"
            )
        return str(found.experiment_id)


def _metric(point: Point) -> Any:
    from mlflow.entities import Metric

    return Metric(_key(point.key), point.value, point.time, point.step)


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {_key(key): clean(value)[:_TAG_CHARACTERS] for key, value in tags.items() if value}


def _key(name: str) -> str:
    """A name made of characters that MLflow accepts, and not a path that leads out of its folder."""
    plain = "".join(char if char.isalnum() or char in "_-./ :" else "_" for char in name)
    return "/".join(part for part in plain.split("/") if part not in ("", ".", ".."))[:250] or "_"


def _dataset_digest(plan: Plan) -> str:
    return str(plan.environment.get("dataset_digest") or "")


def _as_template(text: str) -> str:
    """A prompt with `${name}` in MLflow's form, `{{name}}`."""
    plain = clean(text).strip()
    return re.sub(
        r"\$(?:\{(\w+)\}|(\$))", lambda found: f"{{{{{found[1]}}}}}" if found[1] else "$", plain
    )


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
