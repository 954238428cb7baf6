"""Logs of other tools as runs: of inspect_ai, lm_eval, Harbor, SWE-bench, EvalPlus and others, told by content.

Each reader is a function from a file or folder to a `koderz.systems.publishing.logs.log.Log`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from koderz.analysis.logs import Reader
from koderz.errors import KoderzError
from koderz.systems.publishing.logs import (
    episodes,
    harbor,
    inspect_ai,
    lm_eval,
    programs,
    swe_bench,
)
from koderz.systems.publishing.logs.log import decoded, read_lines, table
from koderz_tracker.files import MB, open_own

_BY_KEYS: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"eval", "status", "version"}), inspect_ai.read_document),
    (frozenset({"results", "configs", "n-shot"}), lm_eval.read_results),
    (frozenset({"trial_name", "task_name"}), harbor.read_job),
    (frozenset({"resolved_instances", "submitted_instances"}), swe_bench.read_report),
    (frozenset({"resolved", "no_generation"}), swe_bench.read_submission),
    (frozenset({"date", "eval"}), programs.read_evalplus),
    (frozenset({"schema_version", "evaluation_id", "model_info"}), episodes.read_every_eval_ever),
)
"""Readers of JSON files, by keys that their objects have; the first that fits is taken."""

_BY_LINES: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"task_id", "result", "passed"}), programs.read_human_eval),
    (frozenset({"traces", "task"}), episodes.read_traces),
    (frozenset({"example_id", "reward"}), episodes.read_saved),
    (frozenset({"evaluation_id", "sample_id", "evaluation"}), episodes.read_every_eval_ever),
)
"""Readers of files of JSON lines, by keys of the first line."""

_BY_FILES: tuple[tuple[str, Reader], ...] = (
    ("results_*.json", lm_eval.read_results),
    ("per_instance_details.json", swe_bench.read_details),
    ("results/results.json", swe_bench.read_submission),
    ("traces.jsonl", episodes.read_traces),
    ("results.jsonl", episodes.read_saved),
    ("*/report.json", swe_bench.read_instances),
)
"""Readers of folders, by a file that they have."""


def reader_of(path: Path) -> Reader | None:
    """The function that reads a file or folder as a log; None where koderz knows none.

    Raises KoderzError for what is a log and has no verdicts, such as a trajectory.
    """
    try:
        if path.is_dir():
            for name, reader in _BY_FILES:
                if next(path.glob(name), None):
                    return reader
            files = [path / "result.json", *harbor.trials_in(path)[:1]]
            is_job = any(_of_json(file) is harbor.read_job for file in files if file.exists())
            return harbor.read_job if is_job else None
        if path.suffix == ".json":
            return _of_json(path)
        if path.suffix == ".jsonl":
            first = table(next(read_lines(path), None))
            return next((reader for keys, reader in _BY_LINES if keys <= first.keys()), None)
        # Nothing else is opened: to close the memory store's file here would end the locks that this process has on it.
        if path.suffix == ".eval":
            with open_own(path) as file:
                return inspect_ai.read_archive if file.read(4) == b"PK\x03\x04" else None
    except OSError:
        pass
    return None


def _of_json(path: Path) -> Reader | None:
    with open_own(path) as file:
        data = file.read(512 * MB)
    try:
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            top = decoded(data, str(path))
        except KoderzError:
            return None
    if isinstance(top, list):
        first = table(_value(next(iter(top), None), path))
        return (
            programs.read_livecodebench if {"question_id", "graded_list"} <= first.keys() else None
        )
    if not isinstance(top, dict):
        return None
    if {"schema_version", "steps", "agent"} <= top.keys():
        raise KoderzError(
            f"{path} is a trajectory, which has no verdict; give the folder of its job or trial"
        )
    for keys, reader in _BY_KEYS:
        if keys <= top.keys():
            return reader
    first = table(_value(next(iter(top.values()), None), path))
    return swe_bench.read_details if {"resolved", "api_calls"} <= first.keys() else None


def _value(value: Any, path: Path) -> Any:
    return decoded(bytes(value), str(path)) if isinstance(value, msgspec.Raw) else value
