#!/usr/bin/env python3
"""Test files that a change can break, found by the code's imports: what `scripts/test --changed` runs.

    scripts/changed.py [BASE]

Prints a line for each test file that changed since BASE (HEAD where none is named), or that imports, directly or
through other modules, a module that did. Files that Git does not track yet count as changed. `tests/test_layout.py`
always stands among them, and so do all tests in the folder of a system of which a module changed, since systems are
found by name. Imports inside functions and those for types count. What is otherwise only reached by starting `koderz`
as a command, by a name in a registry or by reading a file is not seen: `scripts/test` runs those tests, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = "tests/test_layout.py"
PACKAGES = ("koderz", "koderz_tracker", "tests")


def main() -> int:
    """Prints the files, or what is wrong with BASE."""
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    listed = [["diff", "--name-only", "--relative", base, "--"], ["ls-files", "--others", "--exclude-standard"]]
    changed: list[str] = []
    for arguments in listed:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"scripts/changed.py: {done.stderr.strip()}", file=sys.stderr)
            return 2
        changed += done.stdout.splitlines()
    print("\n".join(tests_of(changed)))
    return 0


def tests_of(changed: Iterable[str]) -> list[str]:
    """Test files, relative to the top of the tree, that changes in these files can break."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)
    reached: set[str] = set()
    for path in changed:
        module = _module_of(path)
        if module in graph.modules:
            reached |= {module} | graph.find_downstream_modules(module)
        if module.startswith("koderz.systems."):
            # No import leads from koderz to a system's modules: registries find them by name.
            folder = ".".join(["tests", *module.split(".")[:3]])
            reached |= graph.find_descendants(folder) if folder in graph.modules else set()
        if path.endswith("conftest.py"):
            # pytest hands its fixtures to every test below its folder, without an import.
            reached |= graph.find_descendants(module.rpartition(".")[0])
    tests = {name for name in reached if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")}
    files = {name.replace(".", "/") + ".py" for name in tests}
    return sorted(files | {ALWAYS})


def _module_of(path: str) -> str:
    """The dotted name by which the code imports a file. `tracker` is imported as `koderz_tracker`."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return f"koderz_{name}" if name == "tracker" or name.startswith("tracker.") else name


if __name__ == "__main__":
    sys.exit(main())
