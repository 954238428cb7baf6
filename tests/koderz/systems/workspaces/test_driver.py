"""What the interpreter loads from which tests are forked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from koderz.systems.workspaces import scripts

_LOAD = (
    "import runpy, sys; driver = runpy.run_path(sys.argv[1]); driver['load'](); "
    "print('_pytest.terminal' in sys.modules, [*set(sys.modules) & {'planted', 'conftest', 'test_it'}])"
)


@pytest.mark.slow
def test_driver_loads_pytest_and_nothing_else_present(tmp_path: Path) -> None:
    """Its own small session runs in a folder of the system's for temporary ones, which others write into too."""
    for name in ("planted.py", "conftest.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p planted\npythonpath = .\n")
    driver = Path(scripts.__file__).with_name("guest") / "driver.py"
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", _LOAD, str(driver)],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("True []\n")
    assert not (tmp_path / "ran").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conftest.py", "planted.py", "pytest.ini"]
