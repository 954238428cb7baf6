"""GSO's own harness, asked for its figures: reads a folder of cases, prints what it makes of them as JSON.

To be run by itself, with the folder of GSO's sources and that of the cases. What the harness imports to start
containers isn't needed for its figures, and may be missing.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock


def main(sources: str, folder: str) -> None:
    sys.path.insert(0, sources)
    for name in ("docker", "docker.errors", "docker.models", "docker.models.containers", "datasets"):
        sys.modules.setdefault(name, MagicMock())
    sys.modules.setdefault("gso.harness.environment.docker_utils", MagicMock())
    sys.modules.setdefault("gso.data", MagicMock())
    sys.modules.setdefault("gso.data.dataset", MagicMock())
    from gso.harness.grading.metrics import get_eval_report
    from gso.harness.grading.report import make_run_report
    from gso.harness.opt_at_k import merge_reports

    os.chdir(folder)
    cases = json.loads(Path("cases.json").read_text())
    dataset = [SimpleNamespace(instance_id=name) for name in cases["ids"]]
    reports: list[Any] = []
    for predictions in cases["files"]:
        for name, prediction in predictions.items():
            place = Path("logs/run_evaluation/r") / prediction["model_name_or_path"].replace("/", "__") / name
            if (place / "test_output.txt").exists():
                try:
                    report = get_eval_report(None, prediction, str(place / "test_output.txt"))
                except Exception:
                    continue
                (place / "report.json").write_text(json.dumps(report))
        reports.append(str(make_run_report(predictions, dataset, "r")))
    merged = merge_reports(dataset, reports, cases["k"])
    sys.stdout.write(f"\n{json.dumps(merged)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
