"""Errors that a user can cause or has to know about, and the causes of faults: one word each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal


class KoderzError(Exception):
    """An error whose message says in one or two lines what happened, where, and what to do next.

    The command line prints the message without a traceback and ends with `exit_code`:
    2 wrong usage, configuration or input · 3 ended with faults or at a cap · 4 unreachable.
    """

    exit_code = 2


class JournalError(KoderzError):
    """The journal of a run can't be read, or is not a journal."""


class RunBusy(KoderzError):
    """Another process is working on the run."""


class StorageError(JournalError):
    """The disk refuses data that has to be recorded. Earlier records are safe, and the run can be resumed."""

    exit_code = 3


Cause = Literal[
    "unreachable",
    "rejected",
    "cost_cap",
    "sandbox",
    "unprepared",
    "task",
    "launch_failed",
    "mcp",
    "base_failed",
    "noise",
    "reference",
    "judge",
    "image",
    "setup",
    "healthcheck",
    "provider",
    "verifier",
    "data",
    "user_code",
    "needs_call",
    "diverged",
    "worker_lost",
    "other",
]

TASK: Cause = "task"
"""The cause of a fault that no retry helps against."""

OTHER: Cause = "other"
"""The cause of a fault that names none."""

CAUSES: Mapping[Cause, str] = {
    "unreachable": "a server or store doesn't answer, is too busy, or sends no usable answer",
    "rejected": "a server refuses the request as it is",
    "cost_cap": "the next call could pass --max-experiment-cost",
    "sandbox": "the place where code runs can't be made, is full or has died",
    "unprepared": "the files, image or model that a task needs can't be made ready",
    "task": "the task is at fault: its environment can't be made, or its own solution gets no reward at all",
    "launch_failed": "an agent's command line is not installed, or doesn't start",
    "mcp": "an MCP server of the arm does not start, or does not list its tools",
    "base_failed": "the code that a patch is measured against fails by itself",
    "noise": "two measurements of the same code differ too much for a verdict",
    "reference": "the reference solution of the task fails on this machine",
    "judge": "the verifier, the tests or the judge model came to no result",
    "image": "the image of a task can't be had, or can't run here",
    "setup": "the files of a task or of one of its steps can't be set up",
    "healthcheck": "the environment of a task doesn't become healthy",
    "provider": "the provider of an agent's model fails, or refuses the key or the model",
    "verifier": "the verifier of a task takes too long, or gives no usable reward, whatever it is given",
    "data": "a file that the run was planned with is missing or has changed",
    "user_code": "a solver, suite, scorer or metric raised an error, or returned what can't be recorded",
    "needs_call": "`rescore` came to a call that is not on record; --continue makes it",
    "diverged": "the solver asked for something else than it has on record",
    "worker_lost": "the container on Modal that ran the experiment was lost again and again",
    OTHER: "none of these",
}
"""What each cause means, in the order in which they are listed."""

_OF_REASONS: tuple[tuple[Cause, str], ...] = (
    ("needs_call", "rescore: needs a call"),
    ("reference", "reference fails here: "),
    ("cost_cap", r"the cost cap of \$"),
    ("launch_failed", "launch_failed: "),
    ("base_failed", r"(\S+ can't be prepared: )?base_failed: "),
    ("noise", "noise: "),
    (
        "unprepared",
        r"\S+ can't be prepared: |the (model|image) \S+ (can't be fetched|has no package)",
    ),
    (
        "user_code",
        r"the solver (raised|returned|cancelled)|the suite's lesson raised|(ask|grade|judge): |the metric ",
    ),
    ("diverged", "the solver went another way"),
    ("worker_lost", "its worker on Modal was lost"),
    (
        "judge",
        "the verifier of |the judge's reply|the answer can't be read|tests can't be run by pytest",
    ),
    (
        "sandbox",
        "the WASM manager |the worker of sessions|Out of memory: |the session |session |docker ",
    ),
    (
        "sandbox",
        "the sandbox of |the judge doesn't start|--sandbox |the command ended before it began|the disk below ",
    ),
    ("data", r".* (has changed since the run began|has no solution: )|there is no patch number"),
    ("rejected", r"\S+ at \S+: (?!408|409|425|429)4\d\d: |\S+ can't carry a message "),
    (
        "unreachable",
        r"\S+ at \S+: |simulated fault: |\S+ isn't ready after |all \d+ requests failed",
    ),
)
"""How reasons begin that were recorded without a cause, by versions up to 0.1."""


def cause_counts(causes: Iterable[str]) -> str:
    """The number of faults of each cause, the commonest first: `unreachable 2, sandbox 1`."""
    return ", ".join(f"{cause} {count}" for cause, count in Counter(causes).most_common())


def cause_of(reason: str) -> Cause:
    """The cause of a fault whose record is from before there were causes, by its reason."""
    return next((cause for cause, begins in _OF_REASONS if re.match(begins, reason)), OTHER)
