"""The options of sessions, which solvers with sessions inherit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from koderz.sandbox.wasm.cells import TIMEOUT
from koderz.settings.options import option
from koderz.settings.trust import SENDS

TOKEN_VARIABLE = "KODERZ_WASM_TOKEN"  # noqa: S105 its name


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options for the place where a solver's code runs. A solver's own options inherit from this class."""

    session: Literal["wasm", "native"] | None = option(
        None, "Where code runs: wasm, or native: contained processes. Default: wasm, else native.", "KIND"
    )
    wasm_url: str | None = option(
        None,
        "A WASM manager to run code at, instead of koderz' own workers.",
        "URL",
        risk=SENDS,
        is_address=True,
    )
    wasm_token: str | None = option(
        None,
        f"The manager's token, which is on no record. Better in the variable {TOKEN_VARIABLE}, where a resumed run "
        "looks for it: options stand in the list of processes.",
        "T",
        is_secret=True,
    )
    wasm_timeout: float = option(
        TIMEOUT, "Time that a cell of code may take; waiting for models doesn't count.", "SECONDS", bounds=(0.1, 3600)
    )
    pool_size: int | None = option(
        None,
        "Maximum cells of code that execute at once, those that wait for models not counted; as many sessions are made "
        "ahead. Default: any number of cells, and no sessions ahead.",
        "N",
        bounds=(1, 1000),
    )
