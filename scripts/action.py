"""What the steps of action.yml do that is no matter of a shell. Only Python's own library is needed.

python scripts/action.py words TEXT                # the words of a command line, each with a NUL after it
python scripts/action.py outputs FOLDER            # the outputs of the run in FOLDER/run.json, a line each
python scripts/action.py comment FOLDER VERDICT REPORT_URL    # the comment as Markdown
python scripts/action.py number EVENT              # the number of the pull request that an event is about
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

_MOST = 20  # tasks that are named

_SENTENCES = {
    "passed": "The gate is passed",
    "failed": "The gate has failed",
    "undecided": "Faults decide: run the job again",
    "broken": "There is no verdict: see the log of the job",
}


def words(text: str) -> str:
    try:
        return "".join(f"{word}\0" for word in shlex.split(text))
    except ValueError as error:
        raise SystemExit(f"koderz: {text!r} can't be read as words of a shell: {error}") from None


def outputs(folder: Path) -> Iterator[str]:
    run = _read(folder / "run.json")
    arm = _last_arm(run)
    found = {
        "run-id": run.get("run_id"),
        "success-rate": arm.get("success_rate"),
        "cost": run.get("paid", {}).get("total", arm.get("total_cost")),
        "junit": folder / "junit.xml" if (folder / "junit.xml").exists() else None,
    }
    for name, value in found.items():
        yield f"{name}={'' if value is None else _line(value)}"


def comment(folder: Path, verdict: str, report: str) -> Iterator[str]:
    """One sentence on the verdict, then what it rests on. What a run names is made safe for Markdown."""
    run, compared = _read(folder / "run.json"), _read(folder / "compare.json")
    why = [*compared.get("gates_failed", ()), *compared.get("gates_undecided", ())]
    sentence = _SENTENCES[verdict] + (f": {'; '.join(why)}" if why else "")
    yield "<!-- koderz -->"
    yield f"**koderz: {_plain(sentence)}.**"
    yield ""
    if headline := compared.get("headline"):
        yield f"- {_plain(headline)}"
    elif (rate := _last_arm(run).get("success_rate")) is not None:
        low, high = _last_arm(run).get("success_rate_interval") or (None, None)
        limits = "" if low is None or high is None else f", 95% interval {low:.1f}% to {high:.1f}%"
        yield f"- {rate:.1f}% passed{limits}"
    for name, tasks in (("Lost", compared.get("lost", ())), ("Gained", compared.get("gained", ()))):
        if tasks:
            more = f" and {len(tasks) - _MOST} more" if len(tasks) > _MOST else ""
            yield f"- {name}: {', '.join(_task(task, report) for task in tasks[:_MOST])}{more}"
    if size := compared.get("smallest_difference"):
        unit = " points" if (compared.get("measure") or {}).get("two_valued") else ""
        yield f"- With so many tasks this gate can see drops of {size:.{0 if size >= 10 else 1}f}{unit}."
    paid = run.get("paid", {}).get("total")
    if paid is not None:
        calls, saved = (sum(arm.get(name) or 0 for arm in _arms(run)) for name in ("reused_calls", "saved_cost"))
        reused = f"; {calls} replies were on record, which saved ${saved:.4f}" if calls else ""
        yield f"- Paid ${paid:.4f}{reused}."
    if run.get("run_id"):
        yield f"- Run `{_line(run['run_id'])}`" + (f", [report]({report})" if report else "")


def number(event: Path) -> str:
    found = _read(event).get("pull_request")
    return str(found["number"]) if isinstance(found, dict) and isinstance(found.get("number"), int) else ""


def _read(path: Path) -> dict[str, Any]:
    """The document in a file; an empty one where there is none, as after a run that was refused."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _arms(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of each arm."""
    return [each.get("summary") or {} for each in (run.get("arms") or {}).values()] or [run.get("summary") or {}]


def _last_arm(run: Mapping[str, Any]) -> dict[str, Any]:
    return _arms(run)[-1]


def _line(value: object) -> str:
    return " ".join(str(value).split())


def _plain(text: object) -> str:
    """One line of text in which nothing is markup, an address or a person's name to GitHub."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|!~])", r"\\\1", _line(text))
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//")


def _task(task: str, report: str) -> str:
    return f"[{_plain(task)}]({report}#task={quote(task, safe='')})" if report else _plain(task)


def main(what: str, *arguments: str) -> None:
    if what == "words":
        sys.stdout.write(words(arguments[0]))
    elif what == "outputs":
        sys.stdout.writelines(f"{line}\n" for line in outputs(Path(arguments[0])))
    elif what == "comment":
        sys.stdout.writelines(f"{line}\n" for line in comment(Path(arguments[0]), *arguments[1:]))
    else:
        sys.stdout.write(number(Path(arguments[0] or os.devnull)))


if __name__ == "__main__":
    main(*sys.argv[1:])
