"""Options of those that take part: of one name once, each its own table, all of them in settings and back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from koderz.errors import KoderzError
from koderz.settings.layers import Schema, as_config, load_config, read_file, replaced, roles_in
from koderz.settings.options import option


@dataclass(frozen=True, slots=True)
class Depth:
    max_depth: int = option(3, "How deep.", "N", bounds=(0, 9))
    sizes: tuple[int, ...] = option((1, 2), "How large.", "N", bounds=(1, 99))
    sub_model: str | None = option(None, "Who helps.", "MODEL", role="sub")
    sub: bool = option(True, "Without help.", role="sub")


@dataclass(frozen=True, slots=True)
class OtherDepth:
    max_depth: int = option(4, "How deep.", "N")


BOTH = Schema({"solver.one": Depth, "solver.two": Depth})


def test_options_stand_beside_settings_and_round_trip() -> None:
    settings = BOTH.layered({"max_depth": 5}, {"seed": 3, "max_depth": 4})

    assert (settings.seed, settings.of(Depth), settings.of(OtherDepth)) == (3, Depth(5), OtherDepth())
    assert BOTH.from_config(orjson.loads(orjson.dumps(as_config(settings)))) == settings
    assert replaced(settings, {"max_depth": 1, "seed": 1}) == BOTH.layered({"max_depth": 1, "seed": 1})


def test_options_of_one_name_and_different_meaning_are_refused() -> None:
    with pytest.raises(KoderzError, match=r"solver\.two has an option --max-depth, but there is another one"):
        Schema({"solver.one": Depth, "solver.two": OtherDepth})


def test_list_of_numbers_is_read_from_words_within_bounds() -> None:
    assert BOTH.from_environment({"KODERZ_SIZES": "3, 4"}) == {"sizes": (3, 4)}
    with pytest.raises(KoderzError, match="KODERZ_SIZES: invalid value 100; it must be between 1 and 99"):
        BOTH.from_environment({"KODERZ_SIZES": "3,100"})


@pytest.mark.parametrize(
    ("given", "roles"),
    [({}, {}), ({"sub_model": "m"}, {"sub": "m"}), ({"sub_model": "m", "sub": False}, {})],
)
def test_option_with_a_role_names_its_model(given: dict[str, Any], roles: dict[str, str]) -> None:
    assert roles_in(BOTH.layered(given)) == roles


def test_table_of_a_solver_sets_a_shared_option_for_it_alone(tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").write_text("[solver.one]\nmax-depth = 7\n")
    names = ("max_depth", "sizes")

    alone = load_config(read_file(tmp_path), names=names, schema=Schema({"solver.one": Depth}))
    shared = load_config(read_file(tmp_path), names=names, schema=BOTH)

    assert (alone.settings, alone.solvers) == ({"max_depth": 7}, {"one": {}})
    assert (shared.settings, shared.solvers) == ({}, {"one": {"max_depth": 7}})


def test_options_without_a_default_or_a_dataclass_are_refused() -> None:
    @dataclass
    class Needs:
        depth: int

    for wrong in (Needs, int):
        with pytest.raises(KoderzError):
            Schema({"solver.one": wrong})
