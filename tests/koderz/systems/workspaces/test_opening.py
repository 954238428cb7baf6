"""The workspaces of each sandbox, by its name."""

from __future__ import annotations

import pytest

from koderz.errors import KoderzError
from koderz.sandbox import SANDBOXES
from koderz.sandbox.contained import UncontainedSandbox
from koderz.sandbox.workspace import Backend
from koderz.settings.schema import Settings
from koderz.systems.workspaces.opening import has_workspaces, open_timed, open_uncontained, open_workspaces


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("contained", "Local"),
        ("local", "Local"),
        ("uncontained", "Uncontained"),
        ("docker", "Docker"),
        ("podman", "Podman"),
        ("modal", "Modal"),
    ],
)
def test_workspaces_of_each_sandbox_open_by_its_name(name: str, kind: str) -> None:
    assert has_workspaces(name)
    assert type(open_workspaces(name, Settings(sandbox=name))).__name__ == kind


def test_workspaces_of_an_unknown_sandbox_are_refused() -> None:
    assert not has_workspaces("nowhere")
    with pytest.raises(KoderzError, match="there is no sandbox 'nowhere'; choose from contained"):
        open_workspaces("nowhere", Settings(sandbox="nowhere"))


def test_workspaces_of_another_packages_sandbox_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SANDBOXES.known, "elsewhere", f"{__name__}:Elsewhere")

    assert has_workspaces("elsewhere")
    assert type(open_workspaces("elsewhere", Settings(sandbox="elsewhere"))).__name__ == "Uncontained"


class Elsewhere(UncontainedSandbox):
    @classmethod
    def open_workspaces(cls, settings: Settings) -> Backend:
        return open_uncontained(settings)


def test_workspaces_that_time_nothing_are_refused() -> None:
    with pytest.raises(KoderzError, match="--sandbox uncontained: nothing can be timed there; use contained or docker"):
        open_timed(Settings(sandbox="uncontained"))
