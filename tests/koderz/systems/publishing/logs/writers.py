"""Small logs of each tool, as they are written, of which tasks pass as a test wants."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Passes = Sequence[bool]


def _ids(passes: Passes, form: str) -> list[str]:
    return [form.format(number) for number in range(len(passes))]


def _written(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _lines(path: Path, rows: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def inspect_header(count: int, **more: Any) -> dict[str, Any]:
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": "2026-02-01T09:00:00+00:00",
            "task": "echo",
            "task_version": 0,
            "dataset": {"samples": count, "shuffled": False},
            "model": "mockllm/model",
            "config": {"epochs": 1},
            "packages": {"inspect_ai": "0.3.285"},
            "scorers": [{"name": "match"}],
        },
        "results": {"total_samples": count, "scores": [{"name": "match"}], "headline": {"score": "match"}},
        "stats": {"started_at": "2026-02-01T09:00:00+00:00", "completed_at": "2026-02-01T09:01:00+00:00"},
        **more,
    }


def inspect_sample(task: object, value: object, **more: Any) -> dict[str, Any]:
    return {
        "id": task,
        "epoch": 1,
        "input": f"Repeat the word {task}",
        "target": str(task),
        "scores": {"match": {"value": value, "answer": str(task)}},
        "model_usage": {"mockllm/model": {"input_tokens": 6, "output_tokens": 12, "total_tokens": 18}},
        "total_time": 0.02,
        **more,
    }


def inspect_archive(path: Path, entries: dict[str, Any], *, zstd: bool = True) -> Path:
    """A `.eval`, with its entries compressed as inspect's versions of today do, or as older ones did."""
    module: Any = zipfile
    if zstd and sys.version_info < (3, 14):
        from backports.zstd import zipfile as module
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with module.ZipFile(buffer, "w", 93 if zstd else zipfile.ZIP_DEFLATED) as archive:
        for name, value in entries.items():
            archive.writestr(name, json.dumps(value))
    path.write_bytes(buffer.getvalue())
    return path


def inspect_eval(folder: Path, passes: Passes) -> Path:
    samples = [inspect_sample(f"w{n}", "C" if is_right else "I") for n, is_right in enumerate(passes)]
    entries = {"summaries.json": samples, "header.json": inspect_header(len(passes))}
    return inspect_archive(folder / "log.eval", entries)


def inspect_json(folder: Path, passes: Passes) -> Path:
    samples = [inspect_sample(n, float(is_right)) for n, is_right in enumerate(passes, 1)]
    return _written(folder / "log.json", inspect_header(len(passes), samples=samples))


def lm_eval(folder: Path, passes: Passes) -> Path:
    rows = [
        {
            "doc_id": n,
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": float(is_right if name == "strict-match" else not is_right),
            "filtered_resps": ["w"],
            "doc_hash": f"d{n}",
            "prompt_hash": f"p{n}",
        }
        for n, is_right in enumerate(passes)
        for name in ("strict-match", "flexible-extract")
    ]
    date = "2026-02-01T09-00-00.123456"
    results = {
        "results": {"echo": {"exact_match,strict-match": float("nan")}},  # which Python's json writes
        "configs": {},
        "n-shot": {"echo": 0},
        "higher_is_better": {"echo": {"exact_match": True}},
        "config": {"model": "hf", "limit": None},
        "model_name": folder.name,
        "lm_eval_version": "0.4.13",
        "date": 1795919421.18,
    }
    _lines(folder / f"samples_echo_{date}.jsonl", rows)
    _written(folder / f"results_{date}.json", results)
    return folder


def harbor(folder: Path, passes: Passes) -> Path:
    _written(folder / "result.json", {"id": "job", "stats": {}})
    for n, is_right in enumerate(passes):
        trial = {
            "schema_version": 1,
            "task_name": f"task-{n}",
            "trial_name": f"task-{n}__x",
            "task_checksum": f"sum-{n}",
            "source": "terminal",
            "agent_info": {"name": "oracle", "version": "1", "model_info": {"name": "m", "provider": "p"}},
            "agent_result": {"n_input_tokens": 10, "n_output_tokens": 2, "cost_usd": 0.01},
            "verifier_result": {"rewards": {"reward": float(is_right)}},
            "exception_info": None,
            "started_at": "2026-02-01T09:00:00",
            "finished_at": "2026-02-01T09:01:00",
        }
        _written(folder / f"task-{n}__x" / "result.json", trial)
    return folder


def swe_bench_report(folder: Path, passes: Passes) -> Path:
    ids = _ids(passes, "sympy__sympy-{}")
    report = {
        "total_instances": 500,
        "submitted_instances": len(ids),
        "resolved_instances": sum(passes),
        "submitted_ids": ids,
        "completed_ids": ids,
        "resolved_ids": [task for task, is_right in zip(ids, passes, strict=True) if is_right],
        "unresolved_ids": [task for task, is_right in zip(ids, passes, strict=True) if not is_right],
        "incomplete_ids": [],
        "empty_patch_ids": [],
        "error_ids": [],
        "schema_version": 2,
    }
    return _written(folder / "model.run.json", report)


def swe_bench_instances(folder: Path, passes: Passes) -> Path:
    for task, is_right in zip(_ids(passes, "sympy__sympy-{}"), passes, strict=True):
        report = {task: {"patch_is_None": False, "patch_exists": True, "resolved": is_right}}
        _written(folder / task / "report.json", report)
    return folder


def swe_bench_details(folder: Path, passes: Passes) -> Path:
    rows = {
        task: {"cost": 0.25, "api_calls": 12, "resolved": is_right}
        for task, is_right in zip(_ids(passes, "sympy__sympy-{}"), passes, strict=True)
    }
    _written(folder / "per_instance_details.json", rows)
    return folder


def swe_bench_submission(folder: Path, passes: Passes) -> Path:
    resolved = [task for task, is_right in zip(_ids(passes, "sympy__sympy-{}"), passes, strict=True) if is_right]
    _written(folder / "results/results.json", {"no_generation": [], "no_logs": [], "resolved": resolved})
    by_repository = {"sympy/sympy": {"resolved": len(resolved), "total": len(passes)}}
    _written(folder / "results/resolved_by_repo.json", by_repository)
    return folder


def evalplus(folder: Path, passes: Passes) -> Path:
    rows = {
        task: [{"task_id": task, "base_status": "pass", "plus_status": "pass" if is_right else "fail"}]
        for task, is_right in zip(_ids(passes, "HumanEval/{}"), passes, strict=True)
    }
    return _written(folder / "m_eval_results.json", {"date": "2026-02-01 09:00", "hash": "0a1b", "eval": rows})


def evalplus_before(folder: Path, passes: Passes) -> Path:
    rows = {
        task: {"base": [["pass", []]], "plus": [["pass" if is_right else "fail", []]], "nfiles": 1}
        for task, is_right in zip(_ids(passes, "HumanEval/{}"), passes, strict=True)
    }
    return _written(folder / "m_eval_results.json", {"date": "2023-05-01 09:00", "hash": "0a1b", "eval": rows})


def bigcodebench(folder: Path, passes: Passes) -> Path:
    rows: dict[str, Any] = {
        task: [{"task_id": task, "solution": "", "status": "pass" if is_right else "timeout", "details": {}}]
        for task, is_right in zip(_ids(passes, "BigCodeBench/{}"), passes, strict=True)
    }
    return _written(folder / "m_eval_results.json", {"date": "2026-02-01 09:00", "eval": rows})


def human_eval(folder: Path, passes: Passes) -> Path:
    rows = [
        {"task_id": task, "completion": "pass", "result": "passed" if is_right else "failed: ", "passed": is_right}
        for task, is_right in zip(_ids(passes, "HumanEval/{}"), passes, strict=True)
    ]
    return _lines(folder / "m.jsonl_results.jsonl", rows)


def livecodebench(folder: Path, passes: Passes) -> Path:
    rows = [
        {"question_id": task, "code_list": [""], "graded_list": [is_right], "pass@1": float(is_right)}
        for task, is_right in zip(_ids(passes, "q{}"), passes, strict=True)
    ]
    return _written(folder / "m_eval_all.json", rows)


def traces(folder: Path, passes: Passes) -> Path:
    rows = [
        {
            "id": f"e{n}",
            "env": {"id": "x", "name": "echo"},
            "task": {"id": f"t{n}"},
            "ok": True,
            "errors": [],
            "traces": [{"rewards": {"right": {"value": float(is_right), "weight": 1.0}}, "errors": []}],
        }
        for n, is_right in enumerate(passes)
    ]
    _lines(folder / "traces.jsonl", rows)
    return folder


def verifiers(folder: Path, passes: Passes) -> Path:
    rows = [
        {"example_id": n, "prompt": [{"role": "user", "content": str(n)}], "reward": float(is_right), "exact": 1.0}
        for n, is_right in enumerate(passes)
    ]
    _lines(folder / "results.jsonl", rows)
    _written(folder / "metadata.json", {"env_id": "echo", "model": "m", "num_examples": len(rows)})
    return folder


def every_eval_ever(folder: Path, passes: Passes) -> Path:
    rows = [
        {
            "schema_version": "0.3.0",
            "evaluation_id": "e",
            "model_id": "m",
            "evaluation_name": "echo",
            "sample_id": str(n),
            "sample_hash": f"h{n}",
            "evaluation": {"score": float(is_right), "is_correct": is_right},
        }
        for n, is_right in enumerate(passes)
    ]
    return _lines(folder / "e_samples.jsonl", rows)


WRITERS: dict[str, Callable[[Path, Passes], Path]] = {
    write.__name__: write
    for write in (
        *(inspect_eval, inspect_json, lm_eval, harbor, swe_bench_report, swe_bench_instances, swe_bench_details),
        *(swe_bench_submission, evalplus, evalplus_before, bigcodebench, human_eval, livecodebench),
        *(traces, verifiers, every_eval_ever),
    )
}
"""A writer of each format that koderz reads."""
