"""The options of the engine `modal`."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option
from koderz.settings.trust import SPENDS


@dataclass(frozen=True, slots=True)
class ModalOptions:
    """What its containers are, and how many."""

    gpu: str | None = option(None, "Modal: GPU of each container, such as L4, H100 or H100:2.", "TYPE", risk=SPENDS)
    max_containers: int | None = option(
        None, "Modal: maximum number of containers.", "N", bounds=(1, 10_000), risk=SPENDS, changeable=True
    )
