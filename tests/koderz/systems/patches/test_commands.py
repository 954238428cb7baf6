"""`koderz perf run` before its run begins."""

from __future__ import annotations

import pytest

from koderz.suites.suite import SuiteSource
from koderz.systems.patches.commands import app
from koderz.systems.patches.suite import PerformanceSuite
from tests.conftest import Shell


def test_perf_run_loads_its_suite_once_with_all_that_options_say_of_it(
    koderz: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[PerformanceSuite] = []
    load = PerformanceSuite.load.__func__  # type: ignore[attr-defined]

    def noted(cls: type[PerformanceSuite], source: SuiteSource) -> PerformanceSuite:
        loaded.append(load(cls, source))
        return loaded[-1]

    monkeypatch.setattr(PerformanceSuite, "load", classmethod(noted))
    monkeypatch.chdir(koderz.folder)
    for name, value in koderz.environment({"KODERZ_MAX_BLOCKS": "9"}).items():
        monkeypatch.setenv(name, value)
    app(["run", "--dry-run", "--gso-strict", "--threshold", "0.8"], standalone_mode=False)

    (suite,) = loaded
    assert (suite._rule.threshold, suite._rule.max_blocks, suite._rule.strict) == (0.8, 9, True)
    assert "Experiments: 27" in capsys.readouterr().out
