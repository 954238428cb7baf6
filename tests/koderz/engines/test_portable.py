"""A plan that goes elsewhere: with its settings as they are in this session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.engines import carried, require_able
from koderz.engines.portable import changes_in, files_of, pack_plan, unpack_plan
from koderz.errors import KoderzError
from koderz.runs.prepare import prepare
from koderz.settings.layers import replaced
from koderz.types import EXCLUSIVE
from tests.koderz.test_user_code import SUITE
from tests.koderz.world import planned


def test_settings_that_are_others_than_on_record_go_along(tmp_path: Path) -> None:
    plan = asyncio.run(planned(tmp_path, 1))
    assert changes_in(plan) == {}
    resumed = replace(plan, settings=replaced(plan.settings, {"grace": 7.5}))
    changes = changes_in(resumed)
    assert changes == {"grace": 7.5}
    (tmp_path / "there").mkdir()
    there = unpack_plan(pack_plan(resumed, files_of(resumed)), tmp_path / "there", changes)
    assert there.settings.grace == 7.5
    assert there.record == plan.record


def test_address_is_handed_along_outside_of_the_plan(tmp_path: Path) -> None:
    key = "sk-live-abcdef0123456789abcdef"
    address = f"http://127.0.0.1:9/proxy/{key}/v1"
    plan = asyncio.run(planned(tmp_path, 1, local_model="openai/m", base_url=address))
    packed = pack_plan(plan, files_of(plan))
    assert key not in packed.decode()
    assert changes_in(plan) == {"base_url": address}
    (tmp_path / "there").mkdir()
    assert unpack_plan(packed, tmp_path / "there", changes_in(plan)).settings.base_url == address


def test_needs_that_an_engine_lacks_are_met_by_portable_suites_alone(tmp_path: Path) -> None:
    plan = asyncio.run(planned(tmp_path, 1, engine="modal", sandbox="modal"))
    plan = replace(plan, tasks=tuple(replace(task, needs=frozenset({EXCLUSIVE})) for task in plan.tasks))
    with pytest.raises(KoderzError, match="needs exclusive, which the engine modal hasn't got"):
        require_able(plan)
    plan.suite.portable = frozenset({EXCLUSIVE})
    require_able(plan)
    assert carried(plan) == {EXCLUSIVE}
    plan = replace(plan, settings=replace(plan.settings, engine="local"))
    assert carried(plan) == frozenset()


def test_suite_of_a_file_goes_along(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SUITE)
    given = {"suite": f"{tmp_path}/own.py:words", "local_model": "simulated", "results": tmp_path / "results"}
    plan = asyncio.run(prepare(given, range(3), environ={"XDG_STATE_HOME": str(tmp_path)}))
    (tmp_path / "there").mkdir()
    packed = pack_plan(plan, files_of(plan))
    (tmp_path / "own.py").unlink()

    there = unpack_plan(packed, tmp_path / "there", {})
    assert [task.id for task in there.suite.tasks] == ["Word/one", "Word/two", "Word/three"]
    assert there.settings.suite == f"{tmp_path}/there/suite/own.py:words"
