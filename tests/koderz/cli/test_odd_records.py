"""Odd records: whatever a journal or a summary says, every reader says so in a line, and other runs are read.

ODD_RECORDS=10000 tries as many changed files.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from koderz_tracker.index import load_index
from koderz_tracker.runs import read_plan
from koderz_tracker.sinks.json import encode_summary
from koderz_tracker.summary import summarize
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command

COUNT = int(os.environ.get("ODD_RECORDS", "200"))
PARTS = 4
ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 1.5, 1e308, -1e308, 1 << 39, "\N{RIGHT-TO-LEFT OVERRIDE}\x1b[31m", "", "0", "x" * 300),
    *([], [1], [[]], ["x"], [None], [{}], {}, {"a": 1}, {"": {}}, {"x": [1]}),
)
LARGE = "1180591620717411303424"  # which Python's own writer of JSON writes, and others don't
READERS = (
    ("benchmark", "show", "RUN"),
    ("benchmark", "show", "RUN", "--json"),
    ("benchmark", "show", "RUN", "--problem", "HumanEval/0"),
    ("benchmark", "show", "RUN", "--failures"),
    ("benchmark", "report", "RUN", "--output", "report.html"),
    ("benchmark", "compare", "RUN", "SOUND"),
    ("benchmark", "compare", "RUN"),
    ("benchmark", "problems", "RUN", "SOUND"),
    ("benchmark", "export", "RUN", "--format", "csv", "--output", "runs.csv"),
    ("benchmark", "export", "RUN", "--format", "md", "--attempts"),
    ("benchmark", "export", "RUN", "--format", "jsonl", "--all-arms", "--output", "runs.jsonl"),
    ("benchmark", "watch", "RUN"),
    ("sync", "RUN", "--sink", "json", "--rebuild"),
    ("publish", "RUN", "--to", "public", "--redact"),
    ("doctor", "--repair", "RUN"),
    ("verify", "RUN"),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a sound run, a comparative one and a decided one."""
    shell = Shell(tmp_path_factory.mktemp("runs"))
    shell("benchmark", "0", "2", "--model", "simulated", "--quiet")
    shell("benchmark", "0", "3", "--mode", "comparative", "--model", "simulated", "--samples", "2", "--quiet")
    shell("benchmark", "0", "8", "--mode", "comparative", "--model", "simulated", "--until-decided", "--quiet")
    return shell.results


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(value: Any, dice: random.Random) -> bytes:
    """The value with one of its parts replaced by something odd, left out, or copied to another place."""
    new = copy.deepcopy(value)
    found = list(places(new))
    shortest = [path for path in found if len(path) <= dice.choice((1, 2, 3, 9))]
    *above, last = dice.choice(shortest)
    within = new
    for key in above:
        within = within[key]
    how = dice.random()
    if how < 0.15:
        del within[last]
    elif how < 0.25:
        return orjson.dumps(new).replace(orjson.dumps(within[last]), LARGE.encode(), 1)
    else:
        within[last] = dice.choice(ODD)
    return orjson.dumps(new)


def change(folder: Path, dice: random.Random) -> None:
    """Changes the run's summary, or a line of its journal, which then is what readers look at."""
    summary, journal = folder.with_suffix(".json"), folder / "journal.jsonl"
    if dice.random() < 0.4:
        summary.write_bytes(changed(orjson.loads(summary.read_bytes()), dice))
        os.utime(journal, ns=(0, 0))
        return
    lines = journal.read_bytes().splitlines()
    number = 0 if dice.random() < 0.4 else dice.randrange(len(lines))
    lines[number] = changed(orjson.loads(lines[number]), dice)
    journal.write_bytes(b"\n".join([*lines, b""]))
    os.utime(summary, ns=(0, 0))


def in_order(runs: Path) -> list[str]:
    """The names of the runs as they were started; their ids tell the second alone."""
    return sorted((path.name for path in runs.iterdir() if path.is_dir()), key=lambda name: read_plan(runs / name).time)


def test_readers_read_sound_runs(koderz: Shell, command: Command, runs: Path) -> None:
    """Else they would be tried on nothing."""
    shutil.copytree(runs, koderz.results)
    sound, *others = in_order(runs)
    for other in others:
        for reader in READERS:
            command(*({"RUN": other, "SOUND": sound}.get(word, word) for word in reader))


ODD_PLANS: dict[str, tuple[str, Any]] = {
    "headers that are a number": ("extra_headers", 1),
    "headers that are numbers": ("extra_headers", [1]),
    "an address that is a number": ("base_url", 1),
    "models that are a number": ("models", 1),
    "a suite that is a list": ("suite", ["humaneval"]),
    "tags that are numbers": ("tags", [1]),
    "a large integer": ("seed", 1 << 70),
    "a time that is none": ("", "2026-11-29 at noon"),
}


@pytest.mark.parametrize("case", ODD_PLANS)
def test_odd_plan_hides_its_own_run_alone(koderz: Shell, command: Command, runs: Path, case: str) -> None:
    shutil.copytree(runs, koderz.results)
    *others, odd = in_order(runs)
    journal = koderz.results / odd / "journal.jsonl"
    first, rest = journal.read_bytes().split(b"\n", 1)
    plan = json.loads(first)
    name, value = ODD_PLANS[case]
    (plan["config"] if name else plan)[name or "time"] = value
    journal.write_bytes(json.dumps(plan, separators=(",", ":")).encode() + b"\n" + rest)
    os.utime(koderz.results / f"{odd}.json", ns=(0, 0))

    listed = command("benchmark", "list")
    assert all(other in listed.out for other in others)
    assert f"{odd}/journal.jsonl: byte 0: it doesn't begin with a plan (not a journal line: " in listed.err
    for reader in READERS:
        refused = command(*({"RUN": odd, "SOUND": others[0]}.get(word, word) for word in reader), code=(2, 3))
        assert "it doesn't begin with a plan (not a journal line: " in refused.out + refused.err


def test_odd_line_is_damaged_and_the_others_count(koderz: Shell, command: Command, runs: Path) -> None:
    shutil.copytree(runs, koderz.results)
    odd = min(path.name for path in runs.iterdir() if path.is_dir())
    journal = koderz.results / odd / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    number = next(at for at, line in enumerate(lines) if line.startswith(b'{"kind":"experiment"'))
    lines[number] = re.sub(rb'"tokens_in":\d+', b'"tokens_in":%d' % (1 << 70), lines[number])
    journal.write_bytes(b"".join(lines))
    (koderz.results / f"{odd}.json").unlink()

    shown = json.loads(command("benchmark", "show", odd, "--json").out)
    whole = json.loads((runs / f"{odd}.json").read_bytes())
    assert shown["damaged_lines"] == 1
    assert sum(len(arm["results"]) for arm in shown["arms"].values()) == (
        sum(len(arm["results"]) for arm in whole["arms"].values()) - 1
    )
    assert "1 lines can't be read" in command("verify", odd, code=1).out


def test_journal_of_another_writer_is_the_same_run(koderz: Shell, command: Command, runs: Path) -> None:
    """Blanks after colons and commas, keys by the alphabet, escapes for letters, other ends of lines."""
    shutil.copytree(runs, koderz.results)
    for journal in koderz.results.glob("[!.]*/journal.jsonl"):
        lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
        journal.write_text("".join(json.dumps(line, sort_keys=True) + "\r\n" for line in lines), newline="")
        index = journal.with_name("journal.index")
        index.unlink(missing_ok=True)

        assert not load_index(journal).damaged
        folder, before = journal.parent, runs / journal.parent.name
        assert json.loads(b"".join(encode_summary(summarize(folder)))) == json.loads(
            before.with_suffix(".json").read_text()
        )
        assert "VERIFIED" in command("verify", folder.name).out


@pytest.mark.parametrize("part", range(PARTS))
def test_odd_records_end_no_reader(koderz: Shell, command: Command, runs: Path, part: int) -> None:
    sound, *others = in_order(runs)
    failed: list[str] = []
    for number in range(part, COUNT, PARTS):
        dice = random.Random(number)
        name = dice.choice(others)
        shutil.rmtree(koderz.results, ignore_errors=True)
        koderz.results.mkdir()
        for each in (sound, name):
            shutil.copytree(runs / each, koderz.results / each)
            shutil.copy2(runs / f"{each}.json", koderz.results)
        change(koderz.results / name, dice)
        reader = READERS[number // PARTS % len(READERS)] if number % 20 < 19 else READERS[-1]
        words = [{"RUN": name, "SOUND": sound}.get(word, word) for word in reader]

        for arguments in (["benchmark", "list"], words):
            try:
                done = command(*arguments, code=(0, 1, 2, 3))
                assert sound in done.out or arguments is words
                steering = "\x1b" if "--json" in arguments else "\x1b\u202e"  # JSON holds what was recorded
                assert not re.search(f"Traceback|[{steering}]", done.out + done.err)
            except Exception as error:
                (*_, place) = traceback.extract_tb(error.__traceback__)
                failed.append(f"{number}: {' '.join(arguments)}: {place.filename}:{place.lineno}: {error!r:.200}")
    assert not failed, "\n".join(failed)
