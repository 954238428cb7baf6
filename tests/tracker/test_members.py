"""Classes that others subclass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from koderz_tracker.errors import KoderzError
from koderz_tracker.registry import Extensible


class Shop(Extensible):
    name: str
    measures: tuple[str, ...] = ()

    def open_session(self) -> None: ...


def test_members_refuse_a_misspelt_attribute() -> None:
    with pytest.raises(KoderzError, match=r"^Mine has no member `mesures`; did you mean `measures`\?$"):

        class Mine(Shop):
            mesures = ("score",)


def test_members_refuse_a_misspelt_method_and_annotation() -> None:
    with pytest.raises(KoderzError, match="`open_sesion`; did you mean `open_session`"):

        class Mine(Shop):
            def open_sesion(self) -> None: ...

    with pytest.raises(KoderzError, match="`names`; did you mean `name`"):

        class Another(Shop):
            names: str


def test_members_leave_a_subclass_its_own_names() -> None:
    @dataclass(frozen=True, slots=True)
    class Mine(Shop):
        name: str = "mine"
        score: float = 0.0
        open_shop: bool = True

        def _open_sessions(self) -> None: ...

    assert Mine().measures == ()


def test_members_of_intermediate_classes_count() -> None:
    class Chain(Shop):
        branches = 1

    with pytest.raises(KoderzError, match="`branchs`; did you mean `branches`"):

        class Mine(Chain):
            branchs = 2
