"""A plugin of pytest that writes a report in the Common Test Report Format: `--ctrf FILE`."""

from __future__ import annotations

import json
import time
from typing import Any

STATUSES = {"passed": "passed", "failed": "failed", "skipped": "skipped"}


def pytest_addoption(parser: Any) -> None:
    """Adds the option."""
    parser.addoption(
        "--ctrf",
        default=None,
        metavar="FILE",
        help="write a report in the Common Test Report Format",
    )


def pytest_configure(config: Any) -> None:
    """Adds the report, if it is asked for."""
    if path := config.getoption("--ctrf"):
        config.pluginmanager.register(Report(path), "ctrf-report")


class Report:
    """The report of one run."""

    def __init__(self, path: str) -> None:
        self.path, self.began = path, time.time()
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Takes in one phase of a test; a failed phase counts over a passed one."""
        test = self.tests.setdefault(
            report.nodeid, {"name": report.nodeid, "status": "passed", "duration": 0}
        )
        test["duration"] += round(report.duration * 1000)
        if report.outcome != "passed" and test["status"] != "failed":
            test["status"] = STATUSES.get(report.outcome, "other")
            test["message"] = str(report.longrepr)[:2000]

    def pytest_sessionfinish(self) -> None:
        """Writes the report."""
        tests = [*self.tests.values()]
        counts = {
            status: sum(test["status"] == status for test in tests) for status in STATUSES.values()
        }
        summary = {"tests": len(tests), **counts, "pending": 0, "other": 0}
        summary |= {"start": round(self.began * 1000), "stop": round(time.time() * 1000)}
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(
                {"results": {"tool": {"name": "pytest"}, "summary": summary, "tests": tests}},
                file,
                indent=2,
            )
