"""The options of the solver `rlm`."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option
from koderz.systems.long_context.wasm.cells import SessionOptions


@dataclass(frozen=True, slots=True)
class RlmOptions(SessionOptions):
    """The options of the solver `rlm`."""

    max_depth: int = option(
        3, "Depth of the recursion: 0 no sub-calls, 1 plain ones, above that models with sessions.", "N", bounds=(0, 16)
    )
    max_turns: int = option(30, "Maximum turns of a model in its session.", "N", bounds=(1, 1000))
    sub_model: str | None = option(
        None, "The model that answers sub-calls, at --base-url where that is given.", "MODEL", role="sub"
    )
    max_concurrent_subcalls: int = option(
        4, "Maximum sub-calls in flight in one experiment, over all depths.", "N", bounds=(1, 1000)
    )
    task_timeout: float | None = option(
        None, "Time after which a task is answered with what there is.", "SECONDS", bounds=(0.1, 1e6)
    )
    max_errors: int | None = option(
        None, "Cells that may fail in a row before a model has to answer.", "N", bounds=(1, 1000)
    )
