"""A leaderboard as a page that anyone can make anew: its standings, its inputs' digests, and what would part the best.

The standings are those of `koderz.analysis.leaderboard`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson

from koderz._version import __version__
from koderz.analysis.blocks import Block, Heading, Table, Text, as_html
from koderz.analysis.brief import board_blocks
from koderz.analysis.compare import leaderboard_document
from koderz.analysis.leaderboard import Leaderboard, leaderboard
from koderz.analysis.measures import SUCCESS, measure_named, usual_measure
from koderz.analysis.pairs import Side, chosen_sides, match, require_equal_resources
from koderz.analysis.statistics import ALPHA, normal_quantile
from koderz.errors import KoderzError
from koderz_tracker.files import MB, open_own, sha256_of
from koderz_tracker.journal import NAME
from koderz_tracker.records import as_dict

_POWER = 0.8
_SHOWN = 5  # pairs of systems, and tasks of a kind
_WIDE = 20  # systems of which a table of all pairs is still read


@dataclass(frozen=True, slots=True)
class Board:
    """A leaderboard with what it was made of."""

    board: Leaderboard
    inputs: Mapping[str, str]  # the SHA-256 of each file, by its path
    asked: Mapping[str, Any]  # the names and options that it was made with
    left_out: Sequence[str] = ()

    def blocks(self) -> Iterator[Block]:
        """The board to read: standings, what would part the first two, and tasks that tell nothing."""
        board = self.board
        yield from board_blocks(board, matrix=len(board.standings) <= _WIDE)
        if parting := tasks_to_part(board):
            yield Text(parting)
        tasks = _by_task(board)
        for what, names in (("nobody", _solved(tasks, 0.0)), ("everybody", _solved(tasks, 1.0))):
            if tasks:
                named = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
                yield Text(
                    f"{len(names)} of {len(tasks)} tasks {what} passes{f': {named}' if names else ''}"
                )
        if pairs := complementary(board):
            yield Heading("Systems that pass different tasks")
            rows = [
                [a, b, str(either), str(only_a), str(only_b)]
                for a, b, either, only_a, only_b in pairs[:_SHOWN]
            ]
            yield Table(["A", "B", "Either passes", "Only A", "Only B"], rows)
        yield from (Text(f"note: {note}") for note in self.left_out)

    def document(self) -> dict[str, Any]:
        """The board as JSON, from which `koderz verify` makes it anew."""
        tasks = _by_task(self.board)
        return {
            **leaderboard_document(self.board),
            "tasks_to_part": _needed(self.board),
            "solved_by_nobody": _solved(tasks, 0.0),
            "solved_by_everybody": _solved(tasks, 1.0),
            "complementary": [
                dict(zip(("a", "b", "either", "only_a", "only_b"), each, strict=True))
                for each in complementary(self.board)
            ],
            "left_out": list(self.left_out),
            "made": {"koderz": __version__, "command": self.asked, "inputs": self.inputs},
        }

    def encoded(self) -> bytes:
        """The board as JSON text."""
        return orjson.dumps(
            self.document(), default=as_dict, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )

    def page(self) -> str:
        """The board as one page of HTML without any network, with its JSON in it."""
        data = self.encoded().decode().replace("<", "\\u003c")
        files = "".join(
            f"<li><code>{digest}</code> {escape(path)}</li>" for path, digest in self.inputs.items()
        )
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Leaderboard</title>'
            '<meta name="viewport" content="width=device-width"><style>'
            "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem}"
            "table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.2rem .6rem;text-align:left;"
            "border-bottom:1px solid #8884}code{overflow-wrap:anywhere}</style>"
            f"<main><h1>Leaderboard</h1>{as_html(self.blocks())}<h2>Inputs</h2>"
            f"<p>Made by koderz {__version__}. Where these files are, koderz verify makes this page anew.</p>"
            f"<ul>{files}</ul></main>"
            f'<script type="application/json" id="board">{data}</script></html>\n'
        )


def make_board(
    names: Sequence[str],
    results: Path,
    *,
    arm: str | None = None,
    measure: str | None = None,
    alpha: float = ALPHA,
    exact: bool = False,
    allow_simulated: bool = False,
    unequal_resources: bool = False,
    cluster: str | None = None,
) -> Board:
    """The leaderboard of the named runs, logs and folders of logs; without names, of all runs.

    Raises KoderzError where nothing can be ranked.
    """
    sides, left_out = chosen_sides(
        names, results, arm=arm, allow_simulated=allow_simulated, cluster=cluster
    )
    if not unequal_resources:
        require_equal_resources(sides)
    runs = [*{side.run.name: side.run for side in sides}.values()]
    by = measure_named(measure or usual_measure(runs, ranked=True), runs)
    asked = {"runs": [*names], "arm": arm, "measure": measure, "alpha": alpha, "exact": exact}
    asked |= {
        "allow_simulated": allow_simulated,
        "unequal_resources": unequal_resources,
        "cluster": cluster,
    }
    inputs = {str(path): sha256_of(path) for run in runs for path in _files(run.path)}
    return Board(leaderboard(sides, alpha, by, exact=exact), inputs, asked, left_out)


def verify_board(path: Path, results: Path) -> list[str]:
    """The differences between a leaderboard's page or JSON and what its inputs give; none where it holds.

    Raises KoderzError for a file that is no leaderboard, and for one whose inputs aren't where they were.
    """
    with open_own(path) as file:
        text = file.read(512 * MB).decode("utf-8", "replace")
    if '<script type="application/json" id="board">' in text:
        text = text.partition('id="board">')[2].partition("</script>")[0]
    try:
        told = orjson.loads(text)
        made = told["made"]
        names = [str(name) for name in made["command"]["runs"]]
        options = {name: made["command"][name] for name in ("arm", "measure", "alpha", "exact")}
        options |= {
            name: bool(made["command"][name]) for name in ("allow_simulated", "unequal_resources")
        }
        options |= {"cluster": made["command"].get("cluster")}
        inputs = {str(name): str(digest) for name, digest in made["inputs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise KoderzError(f"{path} is no leaderboard that koderz wrote") from None
    differing = []
    for name, digest in inputs.items():
        if not Path(name).is_file():
            raise KoderzError(
                f"{path}: its input {name} isn't there; verify it where its inputs are"
            )
        if sha256_of(Path(name)) != digest:
            differing.append(f"{name} isn't the file that it was made of")
    anew = orjson.loads(make_board(names, results, **options).encoded())
    differing += [
        f"{key}: recorded otherwise than derived"
        for key in anew
        if key != "made" and told.get(key) != anew[key]
    ]
    if anew["made"]["inputs"].keys() != inputs.keys():
        differing.append("its inputs aren't all those that its command names")
    return differing


def is_board(path: Path) -> bool:
    """Whether a file begins as a leaderboard's page or JSON does."""
    if path.suffix not in (".json", ".html") or not path.is_file():
        return False
    with open_own(path) as file:
        begin = file.read(4096)
    return b"<title>Leaderboard</title>" in begin or begin.lstrip(b"{ \n").startswith(
        b'"leaderboard"'
    )


def _files(path: Path) -> list[Path]:
    """The files of a run or log by which its figures are decided."""
    if path.is_file():
        return [path]
    if (path / NAME).exists():
        return [path / NAME]
    return sorted(
        each for each in path.rglob("*.json*") if each.is_file() and not each.is_symlink()
    )


def tasks_to_part(board: Leaderboard) -> str:
    """How many tasks would part the first two, as a sentence; empty where they are parted, or can't be paired."""
    needed = _needed(board)
    if needed is None:
        return ""
    first, second = (standing.side.label for standing in board.standings[:2])
    return (
        f"To tell {first} from {second}, if both go on as they do, takes some {needed:,} tasks "
        f"({_POWER:.0%} power at {board.alpha:g})."
    )


def _needed(board: Leaderboard) -> int | None:
    """The number of pairs at which McNemar's test parts the first two with 80 % power.

    Source: R. J. Connett, J. A. Smith & R. B. McHugh, "Sample size and power for pair-matched case-control studies",
    Statistics in Medicine 6 (1987), 53-59.
    """
    if len(board.standings) < 2 or board.measure.name != SUCCESS.name:
        return None
    first, second = (standing.side for standing in board.standings[:2])
    found = match(first, second, board.measure)
    if not found.paired or not board.standings[1].level_with_best:
        return None
    before, after = found.means()
    differences = [y - x for x, y in zip(before, after, strict=True)]
    difference, flips = (
        sum(differences) / len(differences),
        sum(map(abs, differences)) / len(differences),
    )
    if not difference:
        return None
    alpha, power = normal_quantile(1 - board.alpha / 2), normal_quantile(_POWER)
    root = alpha * math.sqrt(flips) + power * math.sqrt(max(0.0, flips - difference**2))
    return math.ceil((root / difference) ** 2)


def _by_task(board: Leaderboard) -> dict[str, list[float]]:
    """The share of passed samples of each task in each arm, for tasks that all arms have."""
    values = [standing.side.values(SUCCESS) for standing in board.standings]
    common = [task for task in values[0] if all(task in each for each in values)]
    return {task: [sum(each[task]) / len(each[task]) for each in values] for task in common}


def _solved(tasks: Mapping[str, Sequence[float]], share: float) -> list[str]:
    return [task for task, values in tasks.items() if all(value == share for value in values)]


def complementary(board: Leaderboard) -> list[tuple[str, str, int, int, int]]:
    """Pairs of arms by how many tasks one of both passes, the most first: with those that only one passes."""
    passed: dict[Side, set[str]] = {
        standing.side: {
            task for task, values in standing.side.values(SUCCESS).items() if all(values)
        }
        for standing in board.standings
    }
    found = [
        (a.label, b.label, len(of_a) + only_b, only_a, only_b)
        for (a, of_a), (b, of_b) in combinations(passed.items(), 2)
        if (only_a := len(of_a - of_b)) and (only_b := len(of_b - of_a))
    ]
    return sorted(found, key=lambda each: -each[2])[:_SHOWN]
