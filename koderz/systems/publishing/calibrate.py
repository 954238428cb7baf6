"""`koderz benchmark calibrate`: how far a judge that is a model can be believed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import counted, print_json, say, warn, writing
from koderz.cli.flags import Results, Run, Trust
from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.systems.publishing.labels import JudgedRun

EXIT_STOPPED = 3


def calibrate(
    run: Run,
    draw: Annotated[
        int | None, typer.Option(metavar="N", help="Draw N judged items at random, to be labelled by people.", min=1)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The drawn file, with pass or fail in its column label.")
    ] = None,
    repeat: Annotated[
        int | None, typer.Option(metavar="N", help="Ask the judge N times more about the drawn items.", min=1, max=100)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the draw goes: .csv or .jsonl.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the draw.")] = 0,
    max_cost: Annotated[
        float | None, typer.Option(metavar="USD", help="The most that --repeat may cost.", min=0)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")] = False,
    trust_config: Trust = False,
    *,
    results: Results,
) -> None:
    """Calibrate the judge of a run whose verdicts a model made, by labels of people.

    First --draw N -o labels.csv: items at random, without the judge's verdict. Then, filled in by people,
    --labels labels.csv: agreement, kappa, sensitivity, specificity, and the rate corrected for the judge's errors.
    These go into the run's summary, and compare uses them. --repeat N asks the judge again, and says how many verdicts
    flip.

    Examples:
        koderz benchmark calibrate latest --draw 50 -o labels.csv
        koderz benchmark calibrate latest --labels labels.csv
    """
    from koderz.analysis.runs import find
    from koderz.analysis.story import journal_folder
    from koderz.systems.publishing.labels import JudgedRun

    if sum(each is not None for each in (draw, labels, repeat)) == 0:
        raise KoderzError("nothing to do: draw items with --draw N -o FILE, or read their labels with --labels FILE")
    judged = JudgedRun(journal_folder(find(results, run)))
    if draw is not None:
        _draw(judged, draw, seed, output)
    if labels is not None:
        _labels(judged, labels, json=json)
    if repeat is not None:
        _repeat(judged, repeat, max_cost, json=json, trust_config=trust_config)


def _draw(judged: JudgedRun, count: int, seed: int, output: Path | None) -> None:
    from koderz.systems.publishing.labels import write_rows

    if output is None or output.suffix not in (".csv", ".jsonl"):
        raise KoderzError("--draw writes a file: say which with --output labels.csv, or .jsonl")
    drawn = judged.draw(count, seed)
    with writing(output):
        rows = write_rows(output, judged.rows(drawn))
    judged.keep(drawn)
    warn(
        f"{counted(rows, 'item')} of {len(judged.outcomes)} drawn → {output}; write pass or fail into the column label"
    )


def _labels(judged: JudgedRun, path: Path, *, json: bool) -> None:
    from koderz.systems.publishing.calibration import record_calibration
    from koderz.systems.publishing.labels import read_labels

    found, digest = read_labels(path, judged.outcomes)
    figures = judged.calibration(found, digest)
    record_calibration(judged.folder, digest, figures.arms, found)
    if json:
        print_json({"digest": digest, "arms": figures.arms, "notes": figures.notes})
        return
    for arm, each in figures.arms.items():
        for line in calibration_lines(arm, each):
            say(line)
    for note in figures.notes:
        say(f"Note: {note}")


def calibration_lines(arm: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """The figures of an arm's judge as text for people."""
    labellers = counted(figures["labellers"], "labeller")
    clusters = f" in {counted(figures['clusters'], 'cluster')}" if figures["clusters"] else ""
    yield f"Judge {figures['judge']}, arm {arm}: {counted(figures['items'], 'item')}{clusters}, {labellers}."
    people = f"; among people {_kappa(figures, 'among_people')}" if figures["among_people"] is not None else ""
    kappa = f", kappa {_kappa(figures, 'kappa')}" if figures["kappa"] is not None else ""
    yield f"Agreement {100 * figures['agreement']:.1f} %{kappa}{people}."
    shares = [(name, figures[name]) for name in ("sensitivity", "specificity") if figures[name]]
    if shares:
        yield f"{', '.join(f'{name} {_share(each)}' for name, each in shares).capitalize()}."
    found = figures["corrected"]
    raw = f"Rate: {100 * figures['rate']:.1f} % as the judge has it"
    if found["rate"] is None:
        yield f"{raw}; no correction: {found['reason']}."
        return
    basis = "labels drawn at random from this run" if figures["drawn"] else found["assumption"]
    yield f"{raw}; corrected {100 * found['rate']:.1f} %{_interval(found['interval'], 100, '.1f')}."
    yield f"By {found['method']}: {basis}."
    if found["interval"] and found["interval_method"]:
        yield f"Interval: {found['interval_method']}."
    if why := figures.get("interval_method"):
        yield f"No intervals: {why.removeprefix('none: ')}."
    if found["reason"]:
        yield f"Not to be used: {found['reason']}."


def _kappa(figures: Mapping[str, Any], name: str) -> str:
    return f"{figures[name]:.2f}{_interval(figures[f'{name}_interval'], 1, '.2f')}"


def _share(share: Mapping[str, Any]) -> str:
    of_items = f"{100 * share['share']:.1f} % of {share['items']}"
    return f"{of_items}{_interval(share['interval'], 100, '.1f')}"


def _interval(interval: Sequence[float] | None, scale: int, form: str) -> str:
    """An interval in brackets; empty for none."""
    if interval is None:
        return ""
    low, high = (scale * limit for limit in interval)
    return f" (95 % interval {low:{form}} to {high:{form}})"


def _repeat(judged: JudgedRun, rounds: int, max_cost: float | None, *, json: bool, trust_config: bool) -> None:
    from koderz.systems.publishing.calibration import ask_again

    draws = judged.drawn()
    if not draws:
        raise KoderzError("--repeat asks about the items that were drawn: draw some with --draw N -o FILE")
    drawn = draws[-1].experiments
    price = judged.price_of_judging(drawn)
    about = "an unknown price" if price is None else f"about ${rounds * price:.4f}"
    warn(f"{len(drawn)} items, {counted(rounds, 'round')}: {about}")
    found = asyncio.run(ask_again(judged.folder, drawn, rounds, max_cost=max_cost, trust_config=trust_config))
    if json:
        print_json(found._asdict())
    elif found.agreement is not None:
        say(
            f"The judge agrees with itself in {100 * found.agreement:.1f} % of pairs of verdicts; {found.flipped} of "
            f"{counted(found.items, 'verdict')} flip. Cost: ${found.cost:.4f}."
        )
    if found.stopped:
        warn(f"stopped: {found.stopped}")
        raise typer.Exit(EXIT_STOPPED)
