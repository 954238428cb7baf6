"""The options of the simulated model."""

from __future__ import annotations

from dataclasses import dataclass

from koderz.settings.options import option


@dataclass(frozen=True, slots=True)
class SimulatedOptions:
    """How good it is, how slow, and how often it fails."""

    simulated_skill: float = option(0.6, "How often it is right, 0 to 1.", "X", bounds=(0, 1))
    simulated_latency: float = option(0.0, "Mean latency of a reply.", "SECONDS", bounds=(0, 3600))
    simulated_fault_rate: float = option(0.0, "Share of calls that fail, 0 to 1.", "X", bounds=(0, 1))
