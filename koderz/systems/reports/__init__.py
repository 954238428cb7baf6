"""The system `reports`: runs as one self-contained web page, without network, with all text of models escaped."""

from __future__ import annotations

from koderz.settings.systems import System

SYSTEM = System(
    name="reports",
    commands={
        "benchmark report": (
            "koderz.systems.reports.commands:report",
            "Write a report: one self-contained web page.",
        ),
    },
)
