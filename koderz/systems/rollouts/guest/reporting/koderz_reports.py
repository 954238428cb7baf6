"""A plugin of pytest that reports each phase of each test to koderz, as a line of JSON in the file KODERZ_REPORTS.

It runs on whatever pytest a verifier calls, and imports nothing of koderz.
"""

from __future__ import annotations

import json
import os
from typing import Any


class Reporter:
    """The reports of one run of pytest. Its file is opened before a test file is loaded."""

    def __init__(self, path: str, root: str) -> None:
        self.root = root
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Reports a phase. A test is named by its file's whole path."""
        path, _, name = report.nodeid.partition("::")
        told = {
            "test": os.path.normpath(os.path.join(self.root, path)) + "::" + name,
            "when": report.when,
            "outcome": report.outcome,
            "expected": hasattr(report, "wasxfail"),
        }
        os.write(self.file, (json.dumps(told) + "\n").encode())


def pytest_configure(config: Any) -> None:
    """Adds the reporter where it is asked for."""
    path = os.environ.get("KODERZ_REPORTS")
    if path:
        root = getattr(config, "rootpath", None) or config.rootdir
        config.pluginmanager.register(Reporter(path, str(root)), "koderz-reports")
