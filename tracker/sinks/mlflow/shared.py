"""What runs have in common in MLflow: the evaluation dataset of their suite, and the versions of their prompts.

Both are looked for before they are made, under a lock of the results folder, so that neither another run nor
a repeated projection adds anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracker.parts import FoundPrompt
from tracker.records import Plan

if TYPE_CHECKING:
    from mlflow import MlflowClient

_RECORDS_A_CALL = 1000
_VERSIONS = 1000  # of a prompt that are looked through, the newest first
_EXPERIMENTS = "_mlflow_experiment_ids"  # the tag by which MLflow's UI shows a prompt with an experiment


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry of one of MLflow's registries."""

    name: str
    version: str  # of a dataset, its digest
    key: str = ""  # MLflow's id, of a dataset


def expectations_of(plan: Plan, task_id: str) -> Mapping[str, Any]:
    """What a good answer to the task is known to be, by MLflow's names for it; empty where the suite doesn't say."""
    found: Mapping[str, Any] = plan.details.get("expectations", {}).get(task_id, {})
    return found


def register_dataset(client: MlflowClient, experiment: str, plan: Plan) -> Registered:
    """The suite's evaluation dataset, created where it isn't there, with a record for each of the plan's tasks."""
    suite = plan.suite
    digest = str(plan.environment.get("dataset_digest") or "")
    name = f"{suite}-{digest[:8]}" if digest else suite
    query = f"name = '{name}'"
    found = client.search_datasets([experiment], query, max_results=1, order_by=["created_time ASC"])
    tags = {"koderz.suite": suite, "koderz.dataset_digest": digest}
    dataset = found[0] if found else client.create_dataset(name, experiment, tags)
    known = {record.inputs.get("problem_id") for record in dataset.records}
    records = [_record(plan, task) for task in plan.tasks if task not in known]
    for start in range(0, len(records), _RECORDS_A_CALL):
        dataset.merge_records(records[start : start + _RECORDS_A_CALL])
    return Registered(name, digest or "unknown", dataset.dataset_id)


def register_prompts(client: MlflowClient, experiment: str, plan: Plan) -> list[Registered]:
    """The versions of the registered prompts that hold the run's texts; a text that none holds becomes a version."""
    texts = plan.details.get("prompts", {})
    return [_registered(client, experiment, f"koderz.{name}", _as_template(text)) for name, text in texts.items()]


def register_found(client: MlflowClient, experiment: str, prompt: FoundPrompt) -> Registered:
    """The version of a prompt that a run has found; a new one where none says the same."""
    messages = [dict(message) for message in prompt.messages]
    return _registered(client, experiment, prompt.name, messages, prompt.tags)


def _registered(
    client: MlflowClient,
    experiment: str,
    name: str,
    template: str | list[dict[str, str]],
    tags: Mapping[str, str] = MappingProxyType({}),
) -> Registered:
    known = client.get_prompt(name)
    before = (known.tags.get(_EXPERIMENTS) if known else None) or ","
    shown_with = before if f",{experiment}," in before else f"{before}{experiment},"
    versions = client.search_prompt_versions(name, max_results=_VERSIONS) if known else ()
    if same := [version.version for version in versions if version.template == template]:
        if shown_with != before:
            client.set_prompt_tag(name, _EXPERIMENTS, shown_with)
        return Registered(name, str(min(same)))
    # MLflow would add the experiment too, in a thread; it leaves that be where it finds it done.
    return Registered(
        name, str(client.register_prompt(name, template, tags={**tags, _EXPERIMENTS: shown_with}).version)
    )


def _record(plan: Plan, task: str) -> dict[str, Any]:
    return {
        "inputs": {"problem_id": task},
        "expectations": dict(expectations_of(plan, task)),
        "source": {"source_type": "CODE", "source_data": {"suite": plan.suite}},
    }


def _as_template(text: str) -> str:
    """A prompt's `${name}` in MLflow's form, `{{name}}`."""
    return re.sub(r"\$(?:\{(\w+)\}|(\$))", lambda found: f"{{{{{found[1]}}}}}" if found[1] else "$", text.strip())
