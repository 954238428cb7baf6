"""The system `modal`: containers on Modal, in which experiments, programs and workspaces run."""

from __future__ import annotations

from koderz.settings.systems import System

_HERE = "koderz.systems.modal"

SYSTEM = System(
    name="modal",
    engines={"modal": f"{_HERE}.engine:ModalEngine"},
    sandboxes={"modal": f"{_HERE}.judging:ModalSandbox"},
    options={"engine.modal": f"{_HERE}.names:ModalOptions"},
    commands={"modal": (f"{_HERE}.commands", "Deploy koderz on Modal, or serve a model there.")},
    checks={"modal": f"{_HERE}.cloud:check_modal"},
)
