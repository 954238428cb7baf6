"""`koderz doctor`: checks of the installation."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from koderz._version import __version__
from koderz.cli.console import counted, print_json, say, warn
from koderz.cli.flags import Json
from koderz.cli.options import with_settings
from koderz.engines.sources import read_sources, schema_here
from koderz.errors import KoderzError, Unreachable
from koderz.models.prices import could_spend
from koderz.models.providers import every_provider, provider_of
from koderz.sandbox import FULL, DockerOptions, Job
from koderz.sandbox.calibration import calibrated_sandbox
from koderz.settings.installation import dependency_command
from koderz.settings.layers import NAME, load_config, read_file, results_folder
from koderz.settings.schema import OF_SINKS
from koderz.settings.systems import names_of, required
from koderz.types import Finding
from koderz_tracker.registry import broken_systems
from koderz_tracker.runs import run_folders
from koderz_tracker.scrubber import shown_address
from koderz_tracker.sinks import JSON, sink_class
from koderz_tracker.sinks.process import at_work, wake
from koderz_tracker.sinks.standing import standing_of

_FREE_GB = 1.0


async def diagnose(
    results: Path | None = None, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Checks everything that a run may need. Contacts only the configured model servers and Modal."""
    return [
        Finding(
            "koderz",
            "ok",
            f"{__version__} on Python {platform.python_version()}, {platform.system()}",
        ),
        _config(environ),
        _results(results, environ),
        await _sandbox(),
        await _docker(environ),
        *[finding for name in names_of("checks") for finding in await _own_check(name, environ)],
        *(
            Finding(f"system {name}", "broken", why, _REINSTALL)
            for name, why in broken_systems().items()
        ),
        await _ollama(environ),
        *(
            _provider(name, environ)
            for name in every_provider()
            if name not in ("ollama", "simulated")
        ),
        *_sinks(results, environ),
    ]


_REINSTALL = "install its package again, or remove it"


async def _own_check(name: str, environ: Mapping[str, str]) -> Sequence[Finding]:
    """The findings of a system's own check; if the check itself fails, one that says how."""
    try:
        found: Sequence[Finding] = await required("checks", name)(environ)
    except Exception as error:  # noqa: BLE001 it may be anybody's code, and the rest has to be looked at, too
        why = str(error) if isinstance(error, KoderzError) else f"{type(error).__name__}: {error}"
        return [Finding(name, "broken", f"its check failed: {why}", _REINSTALL)]
    return found


def _config(environ: Mapping[str, str]) -> Finding:
    try:
        schema = schema_here({}, environ)
        load_config(read_file(Path.cwd()), environ=environ, names=(), schema=schema)
    except KoderzError as error:
        return Finding(NAME, "broken", str(error), "mend the file, or remove it")
    try:
        every = (*schema.fields, "prices")
        config = load_config(
            read_file(Path.cwd()), environ=environ, names=every, schema=schema, spends=could_spend
        )
    except KoderzError as error:
        return Finding(NAME, "missing", str(error))
    if config.path is None:
        return Finding(NAME, "missing", "none in this folder; defaults hold")
    return Finding(NAME, "ok", f"{len(config.settings)} settings, {len(config.prices)} prices")


def _results(results: Path | None, environ: Mapping[str, str]) -> Finding:
    try:
        folder = results_folder(results, environ)
    except KoderzError as error:
        return Finding("results", "broken", str(error), f"see {NAME}")
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free / 1e9
    except OSError as error:
        return Finding(
            "results", "broken", f"{folder}: {error.strerror}", "choose another with --results"
        )
    if free < _FREE_GB:
        return Finding("results", "broken", f"{folder}: only {free:.1f} GB free", "make room")
    return Finding("results", "ok", f"{folder}, {free:.0f} GB free")


async def _sandbox() -> Finding:
    """Checks the sandbox by judging one right and one wrong program."""
    test = "def check(candidate):\n    assert candidate() == 1\n"
    try:
        async with calibrated_sandbox("contained", judges=1) as sandbox:
            right = await sandbox.judge(Job("def f():\n    return 1\n", test, "f"))
            wrong = await sandbox.judge(Job("def f():\n    return 2\n", test, "f"))
            level, speed = sandbox.isolation, f"CPU limits × {sandbox.speed:g} on this machine"
    except KoderzError as error:
        return Finding("sandbox", "broken", str(error), "the simulated model works all the same")
    if (right.verdict, wrong.verdict) != ("passed", "failed"):
        return Finding(
            "sandbox",
            "broken",
            f"{level}: {right.message or wrong.message}",
            "no program can be judged",
        )
    if level != FULL:
        return Finding("sandbox", "ok", f"reduced isolation: {level} (full: {FULL}); {speed}")
    return Finding("sandbox", "ok", f"{level}; {speed}")


async def _docker(environ: Mapping[str, str]) -> Finding:
    """Checks that `--sandbox docker` would work, without starting or pulling anything."""
    from koderz.sandbox.docker import DOCKER

    image = environ.get("KODERZ_DOCKER_IMAGE") or DockerOptions().docker_image
    try:
        version = await DOCKER.version_with(image)
    except KoderzError as error:
        return Finding("docker", "missing", str(error), "only --sandbox docker needs it")
    return Finding("docker", "ok", f"{version}, with the image {image}")


async def _ollama(environ: Mapping[str, str]) -> Finding:
    from koderz.models.ollama import discover_ollama

    try:
        models = await discover_ollama(environ)
    except (KoderzError, Unreachable) as error:
        return Finding("ollama", "broken", str(error), "mend OLLAMA_HOST")
    if models is None:
        where = shown_address(environ.get("OLLAMA_HOST", ""), environ) or "its default address"
        return Finding("ollama", "missing", f"no answer at {where}", "start it with: ollama serve")
    if not models:
        return Finding(
            "ollama", "missing", "it runs, without a chat model", "ollama pull qwen2.5-coder:7b"
        )
    return Finding("ollama", "ok", ", ".join(models))


def _provider(name: str, environ: Mapping[str, str]) -> Finding:
    """Whether what a provider's models are asked with is at hand: its key, or an address where it has no key."""
    try:
        provider = provider_of(name)
    except KoderzError as error:
        return Finding(name, "broken", str(error), "mend or uninstall the package that adds it")
    variable = provider.key_variable
    if variable and environ.get(variable):
        return Finding(name, "ok", f"{variable} is set")
    if variable and provider.needs_key:
        return Finding(
            name, "missing", f"{variable} is not set", f"export {variable}=… to use {name}/ models"
        )
    address = environ.get(provider.address_variable) or provider.address
    if not (address or provider.address_variable):
        return Finding(name, "ok", "no key and no address are declared")
    if not address:
        return Finding(
            name, "missing", f"{provider.address_variable} is not set", "set it, or give --base-url"
        )
    return Finding(name, "ok", f"asked at {shown_address(address, environ)} without a key")


def _sinks(results: Path | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that each chosen sink can be loaded and reached, and counts the runs that it lacks."""
    try:
        arguments = {"results": results} if results else {}
        settings = read_sources(arguments, environ, names=("results", *OF_SINKS)).settings
    except KoderzError as error:
        yield Finding("sinks", "broken", str(error), "choose others by KODERZ_SINKS or --sink")
        return
    folders = run_folders(settings.results)
    standings = [standing_of(folder) for folder in folders]
    wake(settings.results, environ)
    at_it = Counter(name for sinks in at_work(settings.results).values() for name in sinks)
    for name in settings.chosen_sinks:
        if name == "mlflow" and find_spec(name) is None:
            yield Finding(
                "sink mlflow", "missing", "MLflow isn't installed", dependency_command(name)
            )
            continue
        states = Counter[str](each[name].state for each in standings if name in each)
        try:
            where = _where_sink(name, settings.results, environ)
        except (KoderzError, ImportError) as error:
            yield Finding(
                f"sink {name}", "broken", str(error), f"or leave it out: --no-sink {name}"
            )
            continue
        lacking = states["behind"] + states["down"]
        now = f"; {at_it[name]} being brought up to date now" if lacking and at_it[name] else ""
        remedy = "koderz sync" if lacking > at_it[name] else ""
        yield Finding(
            f"sink {name}", "ok", f"{where}{_standing(states, len(folders))}{now}", remedy
        )


def _standing(states: Counter[str], runs: int) -> str:
    counts = [
        f"{state} on {states[state]}"
        for state in ("up to date", "behind", "down", "off")
        if states[state]
    ]
    unknown = runs - states.total()
    counts += [f"unknown on {unknown}"] * bool(unknown)
    return f"{', '.join(counts)} of {runs} runs" if counts else "no run yet"


def _where_sink(name: str, results: Path, environ: Mapping[str, str]) -> str:
    """The sink's description of its target, if it has one. Raises KoderzError if the target can't be reached."""
    if name == JSON:
        return ""
    place = sink_class(name).check(results, environ)
    return f"{place}; " if place else ""


_MARKS = {"ok": "ok", "missing": "missing", "broken": "BROKEN"}


@with_settings("results")
def doctor(
    given: dict[str, Any],
    repair: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Copy what can be read of a damaged run into RUN_repaired, and look at nothing else.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Look at models, sandbox, results folder and configuration. Exit code 1 if something is broken.

    Examples:
        koderz doctor
        koderz doctor --json
    """
    if repair is not None:
        _repair(results_folder(given.get("results")), repair, json=json)
        return
    import asyncio

    from koderz.analysis.blocks import Table
    from koderz.cli.tables import print_blocks

    findings = asyncio.run(diagnose(given.get("results")))
    if json:
        print_json(findings)
    else:
        rows: list[Sequence[str]] = []
        for finding in findings:
            rows.append((_MARKS[finding.state], finding.what, finding.detail))
            if finding.remedy:
                rows.append(("", "", f"→ {finding.remedy}"))
        print_blocks([Table((), rows, ruled=False)])
    raise typer.Exit(int(any(finding.state == "broken" for finding in findings)))


def _repair(results: Path, name: str, *, json: bool) -> None:
    """Prints the damage line by line, and the folder of the copy without it."""
    from koderz_tracker.merge import repair
    from koderz_tracker.runs import find_run

    folder = find_run(results, name)
    found = repair(folder)
    if json:
        print_json({**asdict(found), "folder": str(found.folder) if found.folder else None})
        return
    for byte, length, problem in found.damaged:
        say(f"byte {byte}: {counted(length, 'byte')} left out: {problem}")
    for byte in found.doubled:
        say(f"byte {byte}: left out: the line stands there twice")
    for problem in found.lost:
        say(f"{problem}; its line is kept")
    if found.folder is None:
        say(f"{folder.name}: nothing to repair in {counted(found.kept, 'line')}")
        return
    say(f"{found.folder}: {counted(found.kept, 'line')} kept; the original is as it was")
    here, aside = quote(str(folder)), quote(f"{folder}_damaged")
    warn(
        f"put it in the run's place with: mv {here} {aside} && mv {quote(str(found.folder))} {here}"
    )
