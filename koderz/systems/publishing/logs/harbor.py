"""Jobs of Harbor: a folder with a `result.json` for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.systems.publishing.logs.log import (
    Log,
    LoggedSample,
    count,
    number,
    read_json,
    table,
    text,
)


def trials_in(job: Path) -> list[Path]:
    """The `result.json` of each trial of a job, or of the only trial that the folder is."""
    return sorted(path for path in job.glob("*/result.json") if not path.parent.is_symlink())


def read_job(path: Path) -> Log:
    """The log of a job's folder, of one trial's, or of a trial's `result.json`.

    A trial with a reward counts by it, also where its agent ran out of time; one without is a fault.
    """
    places = trials_in(path) if path.is_dir() else [path]
    if path.is_dir() and not places:
        places = [path / "result.json"]
    trials = [trial for place in places if "trial_name" in (trial := table(read_json(place)))]
    if not trials:
        raise KoderzError(f"{path} holds no trial of Harbor with its result.json")
    trials.sort(key=lambda trial: (text(trial.get("task_name")), text(trial.get("started_at"))))
    agents = {_agent(trial) for trial in trials}
    rows = [_row(trial, several=len({model for _, model in agents}) > 1) for trial in trials]
    names = {
        name
        for trial in trials
        for name in table(table(trial.get("verifier_result")).get("rewards"))
    }
    sources = sorted({text(trial.get("source")) for trial in trials} - {""})
    graded = sum(row.value is not None and bool(row.note) for row in rows)
    notes = [
        f"{graded} trials ended in an exception and have a reward all the same, by which they count."
    ]
    version = next(
        (text(trial["harbor_version"]) for trial in trials if "harbor_version" in trial), ""
    )
    return Log(
        tool=f"Harbor {version}".strip(),
        suite="+".join(sources) or "harbor",
        model=", ".join(sorted({model for _, model in agents} - {""})) or "unknown",
        rows=rows,
        scorer="reward",
        settings={
            "rewards": sorted(names),
            "agents": sorted({text(_about(trial).get("version")) for trial in trials}),
        },
        started=min(text(trial.get("started_at")) for trial in trials),
        ended=max(text(trial.get("finished_at")) for trial in trials),
        notes=notes if graded else [],
    )


def _about(trial: Mapping[str, Any]) -> dict[str, Any]:
    return table(trial.get("agent_info"))


def _agent(trial: Mapping[str, Any]) -> tuple[str, str]:
    model = table(_about(trial).get("model_info"))
    name = "/".join(filter(None, (text(model.get("provider")), text(model.get("name")))))
    return text(_about(trial).get("name")) or "agent", name


def _row(trial: Mapping[str, Any], *, several: bool) -> LoggedSample:
    agent, model = _agent(trial)
    result, exception = table(trial.get("agent_result")), table(trial.get("exception_info"))
    rewards = {
        name: found
        for name, value in table(table(trial.get("verifier_result")).get("rewards")).items()
        if (found := number(int(value) if isinstance(value, bool) else value)) is not None
    }
    headline = "reward" if "reward" in rewards else next(iter(rewards), "")
    raised = ": ".join(
        filter(
            None, map(text, (exception.get("exception_type"), exception.get("exception_message")))
        )
    )
    raised = raised.partition("\n")[0]
    return LoggedSample(
        task=text(trial.get("task_name")) or text(trial.get("trial_name")),
        value=rewards.get(headline),
        error=raised or "no reward",
        arm=" ".join(filter(None, (agent, model if several else ""))),
        model=model,
        metrics={name: value for name, value in rewards.items() if name != headline},
        note=raised if headline else "",
        cost=number(result.get("cost_usd")),
        tokens_in=count(result.get("n_input_tokens")),
        tokens_out=count(result.get("n_output_tokens")),
        asks=text(trial.get("task_checksum")) or None,
    )
