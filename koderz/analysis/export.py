"""Runs as rows, one an experiment or one an attempt, and in the forms that other tools and public registries read.

Each row is written before the next is read. CSV and Markdown are for people and spreadsheets, Parquet for data frames.
JSONL is the samples format: HumanEval's evaluator takes `completion` (it puts the task's prompt before it), EvalPlus'
and `koderz judge` take `solution`.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import orjson
from msgspec import UNSET

from koderz.analysis.logs import reader_of
from koderz.analysis.pairs import arm_named
from koderz.analysis.runs import FAULT, FaultsAs, Run, Source, load_run, run_of, run_paths
from koderz.analysis.story import Experiments, Story, StoryStep
from koderz.errors import KoderzError
from koderz.settings.installation import package_command
from koderz.settings.systems import added, names_of
from koderz.streams import plain
from koderz_tracker.blobs import read_data
from koderz_tracker.records import Attempt, Fault, Plan
from koderz_tracker.results import Result
from koderz_tracker.runs import read_plan
from koderz_tracker.summary import Summary

Row = Mapping[str, Any]
TableFormat = Literal["csv", "parquet", "jsonl", "md", "md-wide"]
FORMATS: tuple[TableFormat, ...] = ("csv", "parquet", "jsonl", "md", "md-wide")

_KINDS: Mapping[type, str] = {
    int: "sample test_memory iterations grades calls tokens_in tokens_out attempt call",
    float: "test_timeout cpu_scale score cost latency duration_seconds",
    bool: "simulated success cost_known passed",
    dict: "metrics",  # by name; JSON text in CSV and Parquet
}
_TYPES = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def _columns(names: str) -> dict[str, type]:
    """Columns with their types; a column without a type is text."""
    return {name: _TYPES.get(name, str) for name in names.split()}


_IDENTITY = _columns("run_id experiment_id problem_id suite model mode solver arm sample simulated")
# CPU seconds; MB; what the seconds were stretched by
_LIMITS = _columns("test_timeout test_memory cpu_scale")
EXPERIMENT_COLUMNS = {
    **_IDENTITY,
    **_columns(
        "success verdict cause score metrics iterations grades calls cost cost_known tokens_in tokens_out"
    ),
    **_columns("latency duration_seconds reason note program"),
    **_LIMITS,
}
"""The columns of experiments. A fault has the verdict "fault", a cause, a reason and no success."""
ATTEMPT_COLUMNS = {
    **_IDENTITY,
    **_columns(
        "attempt call passed verdict cause score metrics cost tokens_in tokens_out latency finish_reason"
    ),
    **_columns("detail feedback program reply"),
    **_LIMITS,
}
"""The columns of attempts. Cost, tokens and latency are those of the judged reply's call alone."""
_LONG = frozenset({"program", "reply", "detail", "feedback"})  # left out of wide Markdown
# as far as there are such columns
_OF_MARKDOWN = ("problem_id", "arm", "attempt", "verdict", "score", "cost")
_BATCH = 1000  # rows of a Parquet row group


def export(
    folders: Sequence[Path],
    format_: TableFormat,
    write_to: IO[bytes],
    *,
    attempts: bool = False,
    arm: str | None = None,
    all_arms: bool = False,
    artifact: str | None = None,
    faults: FaultsAs | None = None,
) -> int:
    """Writes the rows of these runs, or of one arm of each, run by run and in each run's own order.

    `artifact`: the name of one that each row is to hold besides, as a column of that name. With `faults` "fail" the row
    of a fault says that it did not succeed, and samples hold an empty program for it.
    Returns how many there were. Raises JournalError for a journal without a plan, before anything of that run is
    written, and KoderzError for an arm that a run doesn't have, and for samples of several arms, which an evaluator
    would take for one model's, without `all_arms`.
    """
    arms = {folder: arms_of(read_plan(folder), arm) for folder in folders}
    if format_ == "jsonl" and not all_arms:
        _refuse_mixture([named for found in arms.values() for named in found.values()])
    columns = ATTEMPT_COLUMNS if attempts else EXPERIMENT_COLUMNS
    if artifact is not None:
        if artifact in columns:
            raise KoderzError(f"--artifact {artifact}: rows have a column of that name already")
        columns = {**columns, artifact: str}
    rows: Iterator[Row] = (
        row
        for folder in folders
        for row in rows_of(folder, arms[folder], attempts=attempts, artifact=artifact)
    )
    if faults == "fail":
        rows = ({**row, "success": False} if row["verdict"] == FAULT else row for row in rows)
    elif format_ == "jsonl":
        rows = filter(lambda row: row["verdict"] != FAULT, rows)
    with _WRITERS[format_](write_to, columns) as write:
        count = 0
        for row in rows:
            write(row)
            count += 1
    return count


def arms_of(plan: Plan, arm: str | None) -> dict[str, str]:
    """The selected arms of a run, each with the name that an evaluator should see."""
    names = [each.name for each in plan.arms]
    if arm is not None:
        names = [arm_named(arm, names, plan.run_id or "the experiment")]
    return {name: f"{plan.arm(name).solver} of {plan.model_of(name)}" for name in names}


def _refuse_mixture(arms: Sequence[str]) -> None:
    different = list(dict.fromkeys(arms))
    if len(different) > 1:
        raise KoderzError(
            f"samples of {len(different)} arms would stand in one file ({', '.join(different)}); "
            "choose one with --arm NAME, or mix them with --all-arms"
        )


def rows_of(
    folder: Path, arms: Container[str], *, attempts: bool = False, artifact: str | None = None
) -> Iterator[Row]:
    """The rows of these arms of one run, with values exactly as recorded."""
    experiments = Experiments(folder)
    plan = experiments.plan
    run = {
        "run_id": plan.run_id or "",
        "suite": plan.suite,
        "mode": plan.mode,
        "test_timeout": plan.config.get("test_timeout"),
        "test_memory": plan.config.get("test_memory"),
        "cpu_scale": plan.environment.get("cpu_scale"),
    }
    for story in experiments.of(arms):
        identity = run | {
            "experiment_id": story.experiment_id,
            "problem_id": story.problem_id,
            "solver": story.solver,
            "arm": story.arm,
            "simulated": plan.is_simulated(story.arm),
            "model": plan.model_of(story.arm),
            "sample": story.sample,
        }
        if attempts:
            yield from (
                identity | _attempt(step) | _artifact([step.attempt], artifact, folder)
                for step in story.steps
                if step.attempt
            )
        else:
            ended = story.outcome
            row = {"program": story.program}
            if isinstance(ended, Fault):
                taken = {
                    name: getattr(ended, name) for name in ("cause", "reason", "cost", "calls")
                }
                experiment = row | {"verdict": FAULT, **taken}
            else:
                names = (
                    EXPERIMENT_COLUMNS.keys()
                    - _IDENTITY.keys()
                    - _LIMITS.keys()
                    - {"program", "reason"}
                )
                experiment = row | {name: getattr(ended, name) for name in names}
            yield identity | experiment | _artifact(story.attempts, artifact, folder)


def _attempt(step: StoryStep) -> dict[str, Any]:
    attempt, call = step.attempt, step.call
    assert attempt is not None
    names = (
        "call",
        "passed",
        "verdict",
        "cause",
        "score",
        "metrics",
        "detail",
        "feedback",
        "program",
    )
    row: dict[str, Any] = {name: getattr(attempt, name) for name in names} | {
        "attempt": attempt.number
    }
    if attempt.task_id:
        row["problem_id"] = attempt.task_id
    if call:
        row |= {
            name: getattr(call, name)
            for name in ("cost", "tokens_in", "tokens_out", "latency", "finish_reason")
        }
        row["reply"] = call.reply
    return row


def _artifact(attempts: Sequence[Attempt], name: str | None, folder: Path) -> dict[str, str]:
    """The artifact with this name from the last attempt that has it; bytes that are no UTF-8 are in base64."""
    having = [attempt.artifacts[name] for attempt in attempts if name in attempt.artifacts]
    if name is None or not having:
        return {}
    last = having[-1]
    if isinstance(last, str):
        return {name: last}
    data = read_data(last, folder)
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode()}


# The formats

Write = Callable[[Row], object]


@contextmanager
def _csv(file: IO[bytes], columns: Mapping[str, type]) -> Iterator[Write]:
    text = io.TextIOWrapper(
        file, encoding="utf-8", errors="backslashreplace", newline="", write_through=True
    )
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    try:
        yield lambda row: writer.writerow([spreadsheet_cell(row.get(name)) for name in columns])
    finally:
        text.flush()
        text.detach()


def spreadsheet_cell(value: Any) -> Any:
    """The cell. Text that a spreadsheet would run as a formula gets an apostrophe before it, as OWASP advises."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return _json(value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


@contextmanager
def _parquet(file: IO[bytes], columns: Mapping[str, type]) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        dict: pa.string(),
        str: pa.string(),
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
    }
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    waiting: list[Row] = []

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist([_unicode(row) for row in waiting], schema))
            waiting.clear()

        def write(row: Row) -> None:
            waiting.append(row)
            if len(waiting) >= _BATCH:
                flush()

        yield write
        flush()


def _unicode(row: Row) -> dict[str, Any]:
    """The row without halves of surrogate pairs, which UTF-8 can't encode."""
    encodable: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, str):
            encodable[name] = value.encode("utf-8", "backslashreplace").decode()
        elif isinstance(value, dict):
            encodable[name] = _json(value)
        else:
            encodable[name] = value
    return encodable


def _json(value: Mapping[str, Any]) -> str | None:
    return orjson.dumps(value).decode() if value else None


@contextmanager
def _jsonl(file: IO[bytes], columns: Mapping[str, type]) -> Iterator[Write]:
    def write(row: Row) -> None:
        program = row.get("program") or ""
        sample = {
            "task_id": row["problem_id"],
            # after the prompt it defines the function once more
            "completion": f"\n{program}" if program else "",
            "solution": program,
        }
        others = {name: row.get(name) for name in columns if name not in ("program", "problem_id")}
        file.write(orjson.dumps(sample | others, option=orjson.OPT_APPEND_NEWLINE))

    yield write


@contextmanager
def _markdown(file: IO[bytes], columns: Mapping[str, type]) -> Iterator[Write]:
    with _wide_markdown(
        file, {name: columns[name] for name in _OF_MARKDOWN if name in columns}
    ) as write:
        yield write


@contextmanager
def _wide_markdown(file: IO[bytes], columns: Mapping[str, type]) -> Iterator[Write]:
    names = [name for name in columns if name not in _LONG]
    for cells in (names, ["---:" if columns[name] in (int, float) else "---" for name in names]):
        file.write(_table_line(cells))
    yield lambda row: file.write(_table_line([_short(row.get(name)) for name in names]))


def _table_line(cells: Iterable[str]) -> bytes:
    return f"| {' | '.join(cells)} |\n".encode("utf-8", "backslashreplace")


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = _json(value) or ""
    text = plain(" ".join(str(value).split()))
    for char in "\\|<>`*[]":
        text = text.replace(char, f"\\{char}")
    return text


_WRITERS: Mapping[
    TableFormat, Callable[[IO[bytes], Mapping[str, type]], AbstractContextManager[Write]]
] = {
    "csv": _csv,
    "parquet": _parquet,
    "jsonl": _jsonl,
    "md": _markdown,
    "md-wide": _wide_markdown,
}


def format_of(path: Path | None, given: str | None) -> TableFormat:
    """The given format, or that of the file's name. Raises KoderzError if neither gives one."""
    name = given or (path.suffix.removeprefix(".") if path else "")
    for format_ in FORMATS:
        if name == format_:
            return format_
    if not name:
        raise KoderzError("say which --format")
    known = [*FORMATS, *names_of("formats")]
    raise KoderzError(f"--format: invalid value {name!r}; choose from {', '.join(known)}")


Library = Literal["pandas", "polars"]
_OF_RUN = ("run_id", "model", "mode", "suite", "status", "start_time")
_OF_RESULT = tuple(
    name for name in Result.__struct_fields__ if name not in ("cost_by_tier", "metrics", "roles")
)


def to_dataframe(runs: Source | Iterable[Source], library: Library = "pandas") -> Any:
    """Returns a data frame with one row per experiment: its run, model, mode, suite, status and start, and its result.

    `runs` are runs, summaries, what `load_summary` takes, or a results folder, one or several. `start_time` is a time,
    costs are US dollars (`cost_spec` and so on by tier), `latency` and `duration_seconds` seconds; each metric has a
    column `metric_NAME`. `facts` and `resources` are JSON text, so that `to_parquet` takes the frame. Raises
    KoderzError for a file that can't be read, and where the library isn't installed.
    """
    sources = [runs] if isinstance(runs, Summary | Path | str) else list(runs)
    rows = [row for source in sources for run in _runs(source) for row in _rows(run)]
    columns = {
        name: [row.get(name) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    columns = columns or {name: [] for name in (*_OF_RUN, "simulated", *_OF_RESULT)}
    if library == "polars":
        try:
            import polars
        except ImportError:
            raise KoderzError(
                f"polars isn't installed; run: {package_command('polars')}; or take pandas: to_dataframe(runs)"
            ) from None
        return polars.DataFrame(columns).with_columns(
            polars.col("start_time").str.to_datetime(strict=False)
        )
    import pandas as pd

    frame = pd.DataFrame(columns)
    return frame.assign(
        start_time=pd.to_datetime(frame["start_time"], format="ISO8601", errors="coerce")
    )


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    of_run = {name: getattr(run, name) for name in _OF_RUN}
    simulated = [run.is_simulated(name) for name, arm in run.arms.items() for _ in arm.results]
    for is_simulated, result in zip(simulated, run.results, strict=True):
        own = {
            "simulated": is_simulated,
            **{name: _cell(getattr(result, name)) for name in _OF_RESULT},
        }
        tiers = {
            f"cost_{tier}": cost
            for tier, cost in (result.cost_by_tier or {"local": result.cost}).items()
        }
        metrics = {f"metric_{name}": value for name, value in (result.metrics or {}).items()}
        yield {**of_run, **own, **tiers, **metrics}


def _cell(value: Any) -> Any:
    """The value as a data frame and a Parquet file hold it: mappings as JSON text, what was never said as None."""
    if isinstance(value, Mapping):
        return _json(value)
    return None if value is UNSET else value


def _runs(source: Source) -> Iterator[Run]:
    if not isinstance(source, Summary) and (paths := _paths_in(Path(source))):
        yield from map(load_run, paths)
    else:
        yield run_of(source)


def _paths_in(folder: Path) -> list[Path]:
    """The runs in a results folder; none in a folder that is itself a run, or another tool's log."""
    return [] if not folder.is_dir() or reader_of(folder) else run_paths(folder)


Stories = Iterable[tuple[Plan, Story]]
"""Experiments, each with its run's plan."""


@dataclass(frozen=True, slots=True)
class Format:
    """An export format: a function that writes experiments into a binary file, or as several files into a folder."""

    function: Callable[[Stories, Any], None]
    """The function. Its second argument is the open file, or the path of the folder, which exists."""

    is_folder: bool = False
    """Whether it is handed a folder."""

    def __call__(self, stories: Stories, target: Any) -> None:
        """Write the experiments."""
        self.function(stories, target)

    @classmethod
    def of(cls, found: Any, name: str) -> Format:
        """The format that was loaded under a name: a Format, or a function that may have the attribute `is_folder`.

        Raises KoderzError for anything else.
        """
        if isinstance(found, cls):
            return found
        if not callable(found):
            raise KoderzError(f"the format {name} is no function: {found!r:.80}")
        return cls(found, bool(vars(found).get("is_folder", False)))


def folder_format(function: Callable[[Stories, Path], None]) -> Format:
    """Decorator that makes a `Format` of a function which writes into a folder."""
    return Format(function, is_folder=True)


Relationship = Literal["first_party", "third_party", "collaborative", "other"]
"""The evaluator's relation to the model, in Every Eval Ever's words."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The facts that a registry asks for and a run doesn't hold."""

    organization: str | None = None  # that publishes the result
    relationship: Relationship | None = None
    model_id: str | None = None  # as the registry has it: DEVELOPER/NAME
    source_url: str | None = None  # of the published run
    hf_dataset: str | None = None  # the dataset on the Hub
    hf_task: str | None = None  # the task of its leaderboard


@dataclass(frozen=True, slots=True)
class Extent:
    """The arm that is written of each run, and how results that are missing are dealt with."""

    arm: str | None = None  # None: all
    faults: FaultsAs | None = None  # how faults count; None: neither way
    # whether an arm is written although not all that was planned is judged
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class RegistryFormat:
    """The format of a public registry of results, which asks for more than a run holds."""

    function: Callable[[Sequence[Path], Any, Publication, Extent], int | None]
    """It writes the runs in folders, and returns the number of samples that it wrote, if it counts any."""

    is_folder: bool = False
    """Whether it is handed a folder, which needn't exist."""


OwnFormat = Format | RegistryFormat


def own_format(name: str | None) -> OwnFormat | None:
    """The format with this name; None for one of koderz' tables, which `koderz.analysis.export` writes."""
    if name is None or name in FORMATS:
        return None
    found = added("formats", name)
    return found if found is None or isinstance(found, RegistryFormat) else Format.of(found, name)


_UNSAID, _ALL = Publication(), Extent()


def write_own(
    own: OwnFormat,
    folders: Sequence[Path],
    target: IO[bytes] | Path,
    about: Publication = _UNSAID,
    extent: Extent = _ALL,
) -> int | None:
    """Writes these runs, or one arm of each, in an own format. Returns the number of experiments that it counts.

    Raises KoderzError for an arm that a run doesn't have.
    """
    if isinstance(own, RegistryFormat):
        return own.function(folders, target, about, extent)
    found = [(each, arms_of(each.plan, extent.arm)) for each in map(Experiments, folders)]
    stories = [(each.plan, story) for each, arms in found for story in each.of(arms)]
    if isinstance(target, Path):
        target.mkdir(parents=True, exist_ok=True)
    try:
        own(stories, target)
    except (KoderzError, OSError):
        raise
    except Exception as error:  # it may be anybody's code
        raise KoderzError(
            f"the format can't be written: {type(error).__name__}: {error}"
        ) from error
    return len(stories)
