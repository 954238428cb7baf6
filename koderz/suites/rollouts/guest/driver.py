"""Runs one test script by pytest in the checkout that is graded, and writes down pytest's own reports.

It is started by `python3 -I -B`, so that nothing of the checkout is imported before pytest is. In its folder lie
`order.json`, which is removed before anything of the checkout runs, and `reports.jsonl`. Each line of that bears the
token of the order.
"""

import json
import os
import sys

FOLDER = sys.argv[1]


def main():
    with open(os.path.join(FOLDER, "order.json")) as file:
        order = json.load(file)
    os.unlink(file.name)
    reports = os.open(os.path.join(FOLDER, "reports.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
    root = os.getcwd()
    say("begun", pytest=pytest.__version__)
    arguments = ["-p", "no:cacheprovider", "--rootdir", root, "-v", "--tb=short", "--maxfail=0", order["path"]]
    pytest.main(arguments, plugins=[Reporter(say, root)])


class Reporter:
    def __init__(self, say, root):
        self._say, self._root = say, root

    def pytest_load_initial_conftests(self, early_config):
        sys.path.insert(0, self._root)  # not before: what is installed as a plugin isn't looked for there

    def pytest_collection_finish(self, session):
        self._say("collected", tests=[item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report):
        self._say(
            "report",
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            expected=hasattr(report, "wasxfail"),
            told=str(report.longrepr or "")[-2000:],
        )


main()
