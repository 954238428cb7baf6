"""Runs one test script by pytest in the checkout that is graded, and writes down pytest's own reports.

It is started by `python3 -I -B`, or forked from a process that has called `load`, so that nothing of the checkout is
imported before pytest is. In its folder lie `order.json`, which is removed before anything of the checkout runs, and
`reports.jsonl`. Each line of that bears the token of the order.
"""

import contextlib
import json
import os
import sys
import time

ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
# modules that are no part of what is loaded for scripts
UNLOADED = ("__main__", "guest", "test_it", "koderz")
LONG = 500  # lines
PAUSES = 20  # between two looks at what judges, in times of what a look takes
OF_PYTEST = (
    "python_api",
    "raises",
    "outcomes",
    "runner",
    "reports",
    "python",
    "unittest",
    "main",
    "nodes",
    "_code.code",
)
JUDGES = (
    *("builtins", "math", "operator", "unittest.case", "unittest.util", "pytest"),
    *(
        f"_pytest.{name}"
        for name in (*OF_PYTEST, "assertion", "assertion.rewrite", "assertion.util")
    ),
    *(f"pluggy.{name}" for name in ("_callers", "_hooks", "_manager", "_result")),
)  # modules by whose functions tests are judged


def load():
    """Imports what pytest and its plugins import for a script that fails. ImportError where there is no pytest.

    Which modules these are is found out in a fork, so that here no session has left anything. Most are known before.
    """
    import importlib
    import tempfile

    import pytest

    _load_plugins()
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


def _load_plugins():
    """Imports pytest's own plugins and those that are installed, so that the fork has them, too."""
    import importlib.metadata

    from _pytest.config import default_plugins

    installed = [] if ALONE in os.environ else importlib.metadata.entry_points(group="pytest11")
    names = [f"_pytest.{name}" for name in default_plugins] + [
        each.value.partition(":")[0] for each in installed
    ]
    for name in names:
        if name.partition(".")[0] not in UNLOADED:
            with contextlib.suppress(Exception):  # which pytest meets, too, and says
                importlib.import_module(name)


def _try(folder):
    os.chdir(folder)
    with open("test_it.py", "w") as file:
        file.write("def test_it():\n    assert [1, 2] == [2, 1]\n")
    with open("order.json", "w") as file:
        json.dump(
            {
                "token": "",
                "path": "test_it.py",
                "pytest": "",
                "changed": [],
                "settings": os.devnull,
            },
            file,
        )
    main([folder])
    with open("modules.json", "w") as file:
        json.dump([name for name in sys.modules if name.partition(".")[0] not in UNLOADED], file)


def main(arguments):
    (folder,) = arguments
    with open(os.path.join(folder, "order.json")) as file:
        order = json.load(file)
    os.unlink(file.name)
    reports = os.open(
        os.path.join(folder, "reports.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
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
    if int(pytest.__version__.partition(".")[0]) >= 8:
        own += ["-o", "verbosity_assertions=0"]  # whole differences of what is long take minutes
    own += order.get("options", [])
    _show_lines()
    arguments = [
        *own,
        "-p",
        "no:cacheprovider",
        "--rootdir",
        root,
        "-v",
        "--tb=short",
        "--maxfail=0",
        order["path"],
    ]
    pytest.main(
        arguments, plugins=[Reporter(say, root, plugins, order["changed"], order.get("paths", []))]
    )


def _show_lines():
    """Make pytest show the failing line of a long file without searching for its whole statement.

    For that it would parse the file anew each time, and hundreds of tests fail where they are turned round.
    """
    from _pytest._code import code, source

    find = getattr(source, "getstatementrange_ast", None)

    def found(lineno, text, *rest, **named):
        if len(text.lines) > LONG:
            raise SyntaxError("too long")  # as for what can't be parsed
        return find(lineno, text, *rest, **named)

    for module in (code, source):
        if getattr(module, "getstatementrange_ast", None) is find is not None:
            module.getstatementrange_ast = found


class Reporter:
    def __init__(self, say, root, plugins, changed, paths):
        self._say, self._root, self._plugins, self._changed, self._paths = (
            say,
            root,
            plugins,
            {*changed},
            paths,
        )
        self._standard, self._manager, self._hooks, self._next = {}, None, {}, 0.0

    def pytest_addoption(self, pluginmanager):
        # pytest itself would first compile them all anew, for the sake of their assertions
        if self._plugins:
            pluginmanager.load_setuptools_entrypoints("pytest11")

    def pytest_load_initial_conftests(self, early_config):
        self._standard = _standard()
        self._manager = early_config.pluginmanager
        self._hooks = {
            name: (caller, [*_implemented(caller)])
            for name, caller in vars(self._manager.hook).items()
        }
        self._calls = self._manager._inner_hookexec
        if self._plugins:
            os.environ.pop(ALONE, None)
        # not before: what is installed as a plugin isn't looked for there
        sys.path[:0] = [*self._paths, self._root]

    def pytest_configure(self, config):
        # what installed plugins change
        for key, (space, names, name, *_, was) in self._standard.items():
            now = _entry(space, names, name)
            if now[-1] and now[-1] is not was and not now[-1].co_filename.startswith(self._root):
                self._standard[key] = now

    def _look(self, but=()):
        """Says which functions that tests are judged by are others now."""
        began = time.perf_counter()
        changed = [
            f"{space.__name__}.{name}"
            for space, names, name, value, function, code in self._standard.values()
            if names.get(name) is not value or (code is not None and function.__code__ is not code)
            if space.__name__ not in but
        ]
        changed += self._changed_hooks()
        if changed:
            self._say("patched", names=changed)
        now = time.perf_counter()
        self._next = now + PAUSES * (now - began)

    def _changed_hooks(self):
        """The hooks that are called otherwise than before, or that what was changed takes part in."""
        manager = self._manager
        found = (
            ["hookexec"]
            if manager._inner_hookexec is not self._calls or "_hookexec" in vars(manager)
            else []
        )
        for name, caller in vars(manager.hook).items():
            before, known = self._hooks.get(name, (caller, ()))
            own = [each for each in _implemented(caller) if each not in known]
            replaced = caller is not before or caller._hookexec != manager._hookexec
            if replaced or any(map(self._is_foreign, own)):
                found.append(name)
        return found

    def _is_foreign(self, implemented):
        """Whether a hook is of no file, or of one that was changed; conftest.py files are the baseline's."""
        code = implemented[-1]
        path = code.co_filename if code else ""
        if not path.startswith(self._root + os.sep):
            return not os.path.isabs(path)
        here = os.path.relpath(path, self._root)
        return here in self._changed and os.path.basename(here) != "conftest.py"

    def pytest_collection_finish(self, session):
        self._look()
        self._say("collected", tests=[item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report):
        if time.perf_counter() >= self._next:
            # modules in which a test may replace something
            self._look(("builtins", "math", "operator") if report.when == "call" else ())
        self._say(
            "report",
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            expected=hasattr(report, "wasxfail"),
            told=str(report.longrepr or "")[-2000:],
        )

    def pytest_sessionfinish(self):
        self._look()


def _standard():
    """The functions and methods of `JUDGES`: where each is, its name, and what it is."""
    spaces = [sys.modules[name] for name in JUDGES if name in sys.modules]
    for space in [*spaces[1:]]:
        spaces += [
            each
            for each in vars(space).values()
            if isinstance(each, type) and each.__module__ in JUDGES[1:]
        ]
    return {
        (id(space), name): _entry(space, vars(space), name)
        for space in spaces
        for name, value in vars(space).items()
        if callable(getattr(value, "__func__", value))
        and (isinstance(space, type) or name[0] != "_" or _is_fixed(space))
    }


def _entry(space, names, name):
    """Where something is, its name, what it is, its function, and the code of that."""
    value = names.get(name)
    plain = getattr(value, "__func__", value)
    return space, names, name, value, plain, getattr(plain, "__code__", None)


def _is_fixed(space):
    """Whether the private functions of a module stay what they are, too."""
    return (
        space.__name__.startswith(("_pytest.", "pluggy."))
        and space.__name__ != "_pytest.assertion.util"
    )


def _implemented(caller):
    """Implementations of a hook: each plugin and function by identity, with the function's code."""
    for each in caller.get_hookimpls():
        hook = each.function
        plain = getattr(hook, "__func__", hook)
        yield id(each), id(plain), getattr(plain, "__code__", None)


if __name__ == "__main__":
    main(sys.argv[1:])
