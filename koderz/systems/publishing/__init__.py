"""The system `publishing`: runs for others and redone by them, registries, other tools' logs, judges' calibration."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.publishing"

SYSTEM = System(
    name="publishing",
    commands={
        "verify": (
            f"{_HERE}.commands:verify",
            "Redo a run offline, and compare it with its record.",
        ),
        "publish": (f"{_HERE}.commands:publish", "Publish whole runs to a folder or an address."),
        "pull": (f"{_HERE}.commands:pull", "Pull published runs, each file checked."),
        "benchmark calibrate": (
            f"{_HERE}.commands:calibrate",
            "Calibrate a judge that is a model by labels of people.",
        ),
    },
    formats={
        "eee": f"{_HERE}.registries:EEE",
        "hf": f"{_HERE}.registries:HF",
        "inspect": f"{_HERE}.eval_logs:inspect",
    },
    logs={"logs": f"{_HERE}.logs:reader_of"},
)
