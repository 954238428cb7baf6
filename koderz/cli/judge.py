"""`koderz judge` and `koderz benchmark import`: judge a program or a samples file, the latter into a run."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from koderz.cli.console import OutputOptions, print_json, say, warn, writing
from koderz.cli.flags import JUnit, Quiet, SummaryJson, TaskThreshold, Trust, Wait
from koderz.cli.gates import EXIT_GATE, Demands, save_junit
from koderz.cli.groups import DefaultGroup, PanelCommand, is_help, new_group
from koderz.cli.options import with_settings
from koderz.cli.session import SessionScreen
from koderz.engines.sources import Scope, schema_of
from koderz.errors import KoderzError
from koderz.settings.options import fields_of, without_effect
from koderz.settings.schema import OF_JUDGING, OF_SINKS, Settings
from koderz.suites.dataset import GZIP
from koderz_tracker.files import MB, read_all, write_whole
from koderz_tracker.sinks import JSON, KNOWN

if TYPE_CHECKING:
    from typer._click.core import Context

    from koderz.types import Verdict


EXIT_FAILED, EXIT_MALFORMED, EXIT_FAULTS = 1, 2, 3
_TELL_EVERY = 5.0  # seconds


class JudgeGroup(DefaultGroup):
    """The group `judge`. Whatever is no command of it is passed to a hidden command."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and not is_help(ctx, args[0]) and args[0] not in self.commands:
            args = [self.alone, *args]
        return super().parse_args(ctx, args)


app = new_group("Judges for training.", JudgeGroup)
app.callback()(lambda: None)  # so that it stays a group, of which one command is hidden


@app.command(name=JudgeGroup.alone, cls=PanelCommand, hidden=True)
@with_settings(
    scope=Scope(without={name: "" for name in schema_of().fields if name not in OF_JUDGING})
)
def judge(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A Python program, or samples in JSONL, plain or .gz."),
    ],
    given: dict[str, Any],
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Which task a program is for: HumanEval/3, or 3."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the verdict on each sample here, in JSONL.",
        ),
    ] = None,
    junit: JUnit = None,
    task_threshold: TaskThreshold = None,
    json: SummaryJson = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Judge one program (with --task), or every sample of a file in HumanEval's or EvalPlus' format.

    A sample has task_id and completion (which goes after the prompt), solution (which is whole) or, for any suite,
    reply (what a model answered). Exit code 0:
    the program passed, or all samples were judged; 1: the program did not pass; 2: a line is malformed; 3: the
    reference of a task fails its own tests here, so that its samples could not be judged.

    Examples:
        koderz judge program.py --task HumanEval/3
        koderz judge samples.jsonl -o verdicts.jsonl
    """
    from koderz.engines.sources import read_sources, require_sandbox
    from koderz.suites import SUITES

    demands = Demands(junit=junit, task_threshold=task_threshold)
    struct = SUITES.options_of(str(given.get("suite", ""))) if "suite" in given else None
    names = (
        (*OF_JUDGING, *(name for name in fields_of(struct) if name not in OF_JUDGING))
        if struct
        else OF_JUDGING
    )
    settings = read_sources(given, names=names, schema=None, trust_config=trust_config).settings
    require_sandbox(settings, given)
    if task is not None:
        if output is not None:
            raise KoderzError(
                "--output is for samples; the verdict on one program is what --json prints"
            )
        if "judges" in given:
            raise KoderzError(
                "--judges has no effect here: only a file of samples is judged by several at once"
            )
        if task_threshold is not None:
            raise without_effect("--task-threshold", "a file of samples")
        code = asyncio.run(_one(file, task, settings, junit, json=json))
    else:
        _require_samples(file)
        code = asyncio.run(_samples(file, settings, output, demands, json=json, quiet=quiet))
    raise typer.Exit(code)


async def _one(file: Path, task: str, settings: Settings, junit: Path | None, *, json: bool) -> int:
    from koderz.analysis.junit import of_verdicts
    from koderz.runs.judge import find_task, judge_one
    from koderz.suites import load_suite

    suite = load_suite(settings.suite, settings.dataset, settings)
    found = find_task(suite, task)
    try:
        text = read_all(file, 16 * MB).decode("utf-8")
        ast.parse(text)
    except OSError as error:
        raise KoderzError(f"{file} can't be read ({error.strerror})") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise KoderzError(f"{file} isn't Python: {error}") from None
    verdict = await judge_one(suite, found, text, settings)
    if junit:
        save_junit(junit, [of_verdicts(f"{suite.name}.zero-shot", [(found.id, verdict)])])
    if json:
        told = {"verdict": verdict.verdict, "cause": verdict.cause, "detail": verdict.detail}
        print_json({**told, **verdict.metrics, **verdict.facts})
    else:
        say(f"{found.id}: {verdict.verdict}{f' ({verdict.cause})' if verdict.cause else ''}")
        if verdict.detail:
            say(verdict.detail)
        for name, value in verdict.facts.items():
            say(f"{name}: {str(value).lower() if isinstance(value, bool) else value}")
    return 0 if verdict.passed else EXIT_FAILED


async def _samples(
    file: Path,
    settings: Settings,
    output: Path | None,
    demands: Demands,
    *,
    json: bool,
    quiet: bool,
) -> int:
    from koderz.analysis.junit import of_verdicts
    from koderz.runs.judge import judge_samples, read_samples
    from koderz.suites import load_suite

    suite = load_suite(settings.suite, settings.dataset, settings)
    samples = read_samples(file, suite.tasks)
    report = await judge_samples(suite, samples, settings, tell=Tally(quiet=quiet or json))
    scored = {} if report.mean_score is None else {"mean_score": report.mean_score}
    if output is not None:
        with writing(output):
            write_whole(
                output,
                (orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in report.lines),
            )
    if json:
        counts = {"samples": report.samples, "passed": report.passed, "causes": report.verdicts}
        print_json({**report.pass_at_k, **report.pass_hat_k, **scored, **counts, **report.facts})
    else:
        say(f"{report.passed} of {report.samples} samples passed")
        for name, value in (report.pass_at_k | report.pass_hat_k | scored).items():
            say(f"{name}: {value:.4f}")
        others = sorted(
            ((n, cause) for cause, n in report.verdicts.items() if cause != "passed"), reverse=True
        )
        if others:
            say("not passed: " + ", ".join(f"{n} {cause}" for n, cause in others))
        for name, count in report.facts.items():
            say(f"{name}: {count}")
    for line in (*samples.malformed, *report.faults):
        warn(line)
    arms: dict[str, list[tuple[str, Verdict | str]]] = {}
    for sample, verdict, row in zip(samples.samples, report.judged, report.lines, strict=True):
        arms.setdefault(sample.solver, []).append((sample.task.id, verdict or str(row["cause"])))
    suites = [
        of_verdicts(f"{suite.name}.{arm}", own, demands.task_threshold) for arm, own in arms.items()
    ]
    if demands.junit:
        save_junit(demands.junit, suites)
    if samples.malformed:
        return EXIT_MALFORMED
    failed = [case.name for each in suites for case in each.cases if case.kind == "failure"]
    if failed and (share := demands.task_threshold) is not None:
        every = sum(len(each.cases) for each in suites)
        few = f"{len(failed)} of {every} tasks pass less than {share:g} of their samples"
        warn(f"gate failed: {few} ({', '.join(failed[:3])}{', …' if len(failed) > 3 else ''})")
        return EXIT_GATE
    return EXIT_FAULTS if report.faults else 0


class Tally:
    """Prints now and then how many programs are judged."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def __call__(self, done: int) -> None:
        if not self._quiet and time.monotonic() - self._last > _TELL_EVERY:
            self._last = time.monotonic()
            warn(f"{done} judged")


def _require_samples(file: Path) -> None:
    """Raises KoderzError for a file that is plainly a program; samples begin with a bracket, or are gzipped."""
    from json import detect_encoding

    from koderz.suites.tables import kind_of

    if not file.is_file():  # a pipe can be read only once
        return
    with contextlib.suppress(OSError), file.open("rb") as opened:
        start = opened.read(4096)
        begin = start.decode(detect_encoding(start[:4]), "ignore").strip()[:1]
        if begin not in ("", "{", "[") and not start.startswith(GZIP) and not kind_of(file):
            raise KoderzError(
                f"{file} is no samples file; if it is a program, name its task: --task HumanEval/3"
            )


_NAMES = (*OF_JUDGING, "tags", "results", *OF_SINKS)
_CHANGED = ("judged", "added", "extended")


@with_settings(*_NAMES)
def import_runs(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR…",
            help="Samples in JSONL, other tools' logs, or runs' and results folders.",
        ),
    ],
    given: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who wrote the samples, where the file doesn't say."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print what became of each as a JSON list.")
    ] = False,
    quiet: Quiet = False,
    wait: Wait = False,
    trust_config: Trust = False,
) -> None:
    """Import samples or runs.

    A samples file (HumanEval's or EvalPlus' format, or what export wrote) is judged here, as koderz judge does, and
    becomes a run of its own; samples of a task whose reference fails here are faults, and the exit code is 3.
    A log of inspect_ai, lm_eval, Harbor, SWE-bench and others becomes a run with its verdicts as they are.
    The runs in a results folder are copied as they are: one that is here already stays, a longer journal of the same
    run replaces the shorter one, and two that went different ways are left alone, with exit code 2. The sinks
    catch up with what was imported, in a terminal in the background; one that stays behind is left to koderz sync.

    Examples:
        koderz benchmark import samples.jsonl --model openai/gpt-6-luna
    """
    from koderz.cli.sync import catch_up_runs
    from koderz.engines.sources import read_sources, require_sandbox

    if model is not None and (not model.strip() or not model.isprintable() or len(model) > 200):
        raise KoderzError("--model: a name has 1 to 200 printable characters")
    here = read_sources(given, names=_NAMES, schema=None, trust_config=trust_config).settings
    require_sandbox(here, given)
    chosen = {name: getattr(here, name) for name in _NAMES if name in fields_of(Settings)}
    settings = Settings(**chosen, local_model=model, own=here.own)
    for source in sources:
        if not source.exists():
            raise KoderzError(f"there is no {source}")
    importing = _Importing(
        settings, quiet=quiet, json=json, chooses_sinks=bool({"sinks", "no_sinks"} & given.keys())
    )
    failed: KoderzError | None = None
    try:
        for source in sources:
            importing.take(source)
    except KoderzError as error:  # what was imported before is whole, and belongs into the sinks
        failed = error
    importing.tell()
    catch_up_runs(importing.changed, settings, quiet=quiet, wait=wait)
    if failed:
        raise failed
    if importing.problems:
        raise typer.Exit(EXIT_MALFORMED)
    raise typer.Exit(EXIT_FAULTS if importing.faults else 0)


class _Importing:
    """The imports so far, and the problems with the rest."""

    def __init__(self, settings: Settings, *, quiet: bool, json: bool, chooses_sinks: bool) -> None:
        self._settings = settings
        self._json = json
        self._quiet = quiet or json
        self._chooses_sinks = chooses_sinks
        self._done: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.faults: list[str] = []

    @property
    def changed(self) -> list[Path]:
        """The folders of runs that are new or longer than before."""
        return [
            self._settings.results / entry["run_id"]
            for entry in self._done
            if entry["what"] in _CHANGED
        ]

    def take(self, source: Path) -> None:
        """Imports a source. Raises KoderzError if it is no samples file, or can't be judged."""
        from koderz.analysis.logs import read_log
        from koderz.runs.imports import import_log
        from koderz_tracker.journal import NAME
        from koderz_tracker.merge import foreign_runs, merge_run

        if not (source / NAME).exists() and (log := read_log(source)):
            with_summary = JSON in self._settings.chosen_sinks
            imported = asyncio.run(
                import_log(log, source, self._settings.results, summary=with_summary)
            )
            self._took(imported.run_id, imported.what)
            return
        if not source.is_dir():
            self._judge(source)
            return

        for folder in foreign_runs(source):
            try:
                merged = merge_run(
                    folder, self._settings.results, summary=JSON in self._settings.chosen_sinks
                )
            except KoderzError as error:  # which doesn't keep the others out
                self.problems.append(str(error))
            else:
                self._took(merged.run_id, merged.what)

    def _judge(self, source: Path) -> None:
        from koderz.runs.imports import import_samples

        if source.suffix == ".json":
            raise KoderzError(
                f"{source} is no samples file; a bare summary needs no import: "
                f"koderz benchmark compare {shlex.quote(str(source))} RUN"
            )
        tell = Tally(quiet=self._quiet)
        session, samples = asyncio.run(import_samples(source, self._settings, tell=tell))
        SessionScreen(OutputOptions(quiet=True, json=self._quiet)).results(session)
        self.problems += samples.malformed
        self.faults += dict.fromkeys(
            f"{fault['problem_id']}: {fault['reason']}" for fault in session.summary.faults
        )
        self._took(session.folder.name, "judged")

    def _took(self, run_id: str, what: str) -> None:
        from koderz_tracker.sinks.standing import choose_sinks

        self._done.append({"run_id": run_id, "what": what})
        if what in _CHANGED and self._chooses_sinks:  # else koderz sync may choose others
            choose_sinks(self._settings.results / run_id, self._settings.chosen_sinks, KNOWN)

    def tell(self) -> None:
        """Prints the result of each import."""
        if self._json:
            print_json(self._done)
        else:
            for entry in self._done:
                say(f"{entry['run_id']}: {entry['what']}")
        for problem in (*self.problems, *self.faults):
            warn(f"koderz: {problem}")
