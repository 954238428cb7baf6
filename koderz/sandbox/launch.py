"""The command lines of koderz' own interpreters, which have nothing of the caller's in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

_KODERZ = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The packages' own __init__ would load the whole of koderz: stubs with the right paths stand in.
_BOOT = """
import gc, sys, types
gc.disable()  # while modules load there is nothing to collect, and much to look at
sys.path += {folders!r}
for name, path in {stubs!r}:
    stub = sys.modules[name] = types.ModuleType(name)
    stub.__path__ = [path]
from {module} import main
gc.freeze()
gc.enable()
main(sys.argv[1:])
"""

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a set decides no verdict
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


def command(module: str, arguments: Iterable[str], *, packages: Iterable[str] = ()) -> list[str]:
    """The command line of an interpreter that runs the main of a module of koderz.

    It sees no installed package but `packages`, and what lies in the same folder as these.
    """
    parts = module.split(".")
    names = {"koderz", "koderz.sandbox", *(".".join(parts[:n]) for n in range(1, len(parts)))}
    stubs = [(name, os.path.join(_KODERZ, *name.split(".")[1:])) for name in sorted(names)]
    boot = _BOOT.format(stubs=stubs, module=module, folders=folders_of(packages))
    flags = ["-s", "-P", "-S", "-X", "utf8"] + ["-B"] * sys.dont_write_bytecode
    return [sys.executable, *flags, "-c", boot, *arguments]


def folders_of(packages: Iterable[str]) -> list[str]:
    """The folders that these packages are imported from here, those that are installed."""
    from importlib.util import find_spec  # most who load this module need none of that

    found = (find_spec(name) for name in packages)
    return [
        *dict.fromkeys(
            os.path.dirname(os.path.dirname(spec.origin)) for spec in found if spec and spec.origin
        )
    ]
