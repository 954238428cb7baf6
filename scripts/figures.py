"""Common parts of koderz' benchmarks: figures with targets, options, and the exit code.

    SECTIONS: Sections = {"list": listing, "report": report}  # functions that take the options and yield figures

    def main() -> int:
        options = figures.parser(__doc__, SECTIONS).parse_args()
        return figures.report(figures.measured(SECTIONS, options), options)

A figure is printed as soon as it is measured, so that a long benchmark shows how far it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement, and whether it is what it has to be."""

    what: str
    value: float | None  # None: what was to be measured failed, see `failure`
    unit: str = ""
    least: float | None = None  # of the measurements whose median the value is
    target: str = ""  # in words
    met: bool | None = None  # None where there is no target
    section: str = ""  # of the benchmark that it belongs to; see `measured`
    failure: str = ""  # why there is no value

    def at_most(self, most: float | None) -> Figure:
        """With this target; None for no target."""
        return self if most is None else self._aimed("at most", most, self.value is not None and self.value <= most)

    def at_least(self, least: float) -> Figure:
        """With this target."""
        return self._aimed("at least", least, self.value is not None and self.value >= least)

    def _aimed(self, words: str, limit: float, met: bool) -> Figure:
        return replace(self, target=f"{words} {limit:,g} {self.unit}".rstrip(), met=met)


Section = Callable[[argparse.Namespace], Iterable[Figure]]
Sections = Mapping[str, Section]


def parser(doc: str | None, sections: Sections | None = None) -> argparse.ArgumentParser:
    """The options that every benchmark has: --json and --check, and --only where it has sections."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if sections is not None:
        made.add_argument("--only", action="append", choices=sections, help="this section; repeatable")
    made.add_argument("--json", action="store_true", help="print a JSON list of figures, when all are measured")
    made.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    return made


def measured(sections: Sections, options: argparse.Namespace) -> Iterator[Figure]:
    """The figures of the sections that were asked for, each while it is waited for."""
    for name in options.only or sections:
        for figure in sections[name](options):
            yield replace(figure, section=name)


def report(figures: Iterable[Figure], options: argparse.Namespace) -> int:
    """Prints the figures, each as it comes or all of them as JSON; 1 where --check is to tell of a missed target."""
    found = []
    for figure in figures:
        found.append(figure)
        if not options.json:
            print(_line(figure), flush=True)
    if options.json:
        print(json.dumps([{"section": figure.section} | asdict(figure) for figure in found], indent=2))
    return int(options.check and any(figure.met is False for figure in found))


def _line(figure: Figure) -> str:
    section = f"{figure.section:11}" if figure.section else ""
    least = f" (least {figure.least:,.2f})" if figure.least is not None else ""
    target = f"  {figure.target}: {'met' if figure.met else 'MISSED'}" if figure.target else ""
    value = f"{figure.value:10,.2f} {figure.unit:2}" if figure.value is not None else f"failed: {figure.failure} "
    return f"{section}{figure.what:56} {value}{least}{target}".rstrip()
