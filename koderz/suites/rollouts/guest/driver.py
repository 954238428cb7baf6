"""Runs one test script by pytest in the checkout that is graded, and writes down pytest's own reports.

It is started by `python3 -I -B`, or forked from a process that has called `load`, so that nothing of the checkout is
imported before pytest is. In its folder lie `order.json`, which is removed before anything of the checkout runs, and
`reports.jsonl`. Each line of that bears the token of the order.
"""

import json
import os
import sys

ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
JUDGES = (
    "builtins",
    "math",
    "operator",
    "unittest.case",
    "pytest",
    *(f"_pytest.{name}" for name in ("python_api", "raises", "outcomes", "runner", "reports", "python", "unittest")),
)  # modules by whose functions tests are judged


def load():
    """Imports what pytest and its plugins import for a script that fails. ImportError where there is no pytest.

    Which modules these are is found out in a fork, so that here no session has left anything.
    """
    import importlib
    import tempfile

    import pytest

    with tempfile.TemporaryDirectory() as folder:
        if not os.fork():
            try:
                _try(folder)
            finally:
                os._exit(0)
        os.wait()
        with open(os.path.join(folder, "modules.json")) as file:
            names = json.load(file)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # whoever needs it is told so
            continue


def _try(folder):
    os.chdir(folder)
    with open("test_it.py", "w") as file:
        file.write("def test_it():\n    assert [1, 2] == [2, 1]\n")
    with open("order.json", "w") as file:
        json.dump({"token": "", "path": "test_it.py", "pytest": "", "settings": os.devnull}, file)
    main([folder])
    with open("modules.json", "w") as file:
        own = {name for name in sys.modules if name.partition(".")[0] in ("__main__", "guest", "test_it", "koderz")}
        json.dump([name for name in sys.modules if name not in own], file)


def main(arguments):
    (folder,) = arguments
    with open(os.path.join(folder, "order.json")) as file:
        order = json.load(file)
    os.unlink(file.name)
    reports = os.open(os.path.join(folder, "reports.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    token, dumps, write = order["token"], json.dumps, os.write

    def say(what, **more):
        write(reports, (dumps({"token": token, "what": what, **more}) + "\n").encode())

    try:
        import pytest
    except ImportError:
        sys.path.append(order["pytest"])
        try:
            import pytest
        except ImportError as error:
            say("missing", error=str(error))
            return
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    plugins = ALONE not in os.environ
    os.environ[ALONE] = "1"
    root = os.getcwd()
    say("begun", pytest=pytest.__version__)
    own = ["-c", order["settings"], "--confcutdir", root] if "settings" in order else []
    arguments = [*own, "-p", "no:cacheprovider", "--rootdir", root, "-v", "--tb=short", "--maxfail=0", order["path"]]
    pytest.main(arguments, plugins=[Reporter(say, root, plugins)])


class Reporter:
    def __init__(self, say, root, plugins):
        self._say, self._root, self._plugins = say, root, plugins
        self._standard = {}

    def pytest_addoption(self, pluginmanager):
        if self._plugins:  # pytest itself would first compile them all anew, for the sake of their assertions
            pluginmanager.load_setuptools_entrypoints("pytest11")

    def pytest_load_initial_conftests(self, early_config):
        self._standard = _standard()
        if self._plugins:
            os.environ.pop(ALONE, None)
        sys.path.insert(0, self._root)  # not before: what is installed as a plugin isn't looked for there

    def pytest_configure(self, config):
        for key, (space, name, was) in self._standard.items():  # what installed plugins change
            _, code = now = _held(space, name)
            if code and code is not was[1] and not code.co_filename.startswith(self._root):
                self._standard[key] = space, name, now

    def _look(self, but=()):
        """Says which functions that tests are judged by are others now."""
        changed = [
            f"{space.__name__}.{name}"
            for space, name, was in self._standard.values()
            if space.__name__ not in but and any(one is not other for one, other in zip(_held(space, name), was))
        ]
        if changed:
            self._say("patched", names=changed)

    def pytest_collection_finish(self, session):
        self._look()
        self._say("collected", tests=[item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report):
        self._look(("builtins", "math", "operator") if report.when == "call" else ())  # which a test may replace
        self._say(
            "report",
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            expected=hasattr(report, "wasxfail"),
            told=str(report.longrepr or "")[-2000:],
        )


def _standard():
    """The functions and methods of `JUDGES`: where each is, its name, and what it is."""
    spaces = [sys.modules[name] for name in JUDGES if name in sys.modules]
    for space in [*spaces[1:]]:
        spaces += [each for each in vars(space).values() if isinstance(each, type) and each.__module__ in JUDGES[1:]]
    return {
        (id(space), name): (space, name, _held(space, name))
        for space in spaces
        for name, value in vars(space).items()
        if callable(getattr(value, "__func__", value)) and (isinstance(space, type) or not name.startswith("_"))
    }


def _held(space, name):
    value = vars(space).get(name)
    return value, getattr(getattr(value, "__func__", value), "__code__", None)


if __name__ == "__main__":
    main(sys.argv[1:])
