"""The addresses and headers of a run, which its plan records without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koderz.engines.sources import read_sources, schema_of_plan
from koderz.errors import KoderzError
from koderz.settings.layers import options_in, replaced
from koderz.settings.options import Field, flag_of
from koderz.settings.requests import headers_in, named
from koderz.settings.schema import Settings
from koderz_tracker.plain_text import REDACTED
from koderz_tracker.records import Plan
from koderz_tracker.scrubber import fits


def require_whole(settings: Settings) -> None:
    """Raises KoderzError for an address copied from a record, where its secrets are missing."""
    for field, address in _addresses(settings):
        if REDACTED in address:
            raise KoderzError(
                f"{flag_of(field.name)}: {address} is what a record has of an address, without what could be a secret; "
                "give the address itself"
            )


def address_names(settings: Settings) -> list[str]:
    """The options that are addresses."""
    return [field.name for field, _ in options_in(settings) if field.about.is_address]


def with_addresses(
    plan: Plan,
    settings: Settings,
    given: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    needed: bool,
    trust_config: bool,
) -> tuple[Settings, bool]:
    """The settings of a recorded plan with whole addresses, and whether `base_url` came from koderz.toml.

    What the plan hasn't whole is `given`, or else said by a variable or koderz.toml. Raises KoderzError where it is
    `needed` and not said, and for an address that isn't the recorded one.
    """
    recorded = {field.name: address for field, address in _addresses(settings)}
    for name, address in given.items():
        if not fits(str(address), recorded.get(name, "")):
            raise KoderzError(
                f"{flag_of(name)}: {_recorded(plan, name, recorded.get(name))}, which isn't what is given"
            )
    cut = {name for name, address in recorded.items() if REDACTED in address}
    if not cut or not (needed or given):
        return settings, False
    again, schema = {name: given[name] for name in cut & {*given}}, schema_of_plan(plan)
    sources = read_sources(again, environ, names=cut, schema=schema, trust_config=trust_config)
    said = {field.name: address for field, address in _addresses(sources.settings) if field.name in cut}
    found = {name: address for name, address in said.items() if fits(address, recorded[name])}
    if needed and (missing := sorted(cut - {*found})):
        name = missing[0]
        raise KoderzError(
            f"{_recorded(plan, name, recorded[name])}, without what could be a secret; give the same address by "
            f"{flag_of(name)}, KODERZ_{name.upper()} or koderz.toml"
            + ("; what is set there is another" * (name in said))
        )
    return replaced(settings, found), "base_url" in {*found} - {*sources.is_ours}


def with_values(
    settings: Settings, given: Mapping[str, Any], environ: Mapping[str, str], *, trust_config: bool
) -> dict[str, Any]:
    """The headers of a recorded plan with the values that are given, or else said by a variable or koderz.toml.

    Empty where the plan has none. Raises KoderzError for a header that the plan doesn't have.
    """
    recorded = [*headers_in(settings.extra_headers)]
    told: Sequence[str] = given.get("extra_headers", ())
    if not told and any(not header.variable for header in recorded):
        sources = read_sources({}, environ, names={"extra_headers"}, trust_config=trust_config)
        told = sources.settings.extra_headers
    said = {header.name.lower(): text for text in told for header in headers_in([text])}
    if "extra_headers" in given and (unknown := said.keys() - {header.name.lower() for header in recorded}):
        raise KoderzError(f"--extra-header {min(unknown)}: the plan has no such header, and can't get another")
    values = tuple(said.get(header.name.lower(), header.recorded) for header in recorded)
    return {"extra_headers": values} if recorded else {}


def recordable(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changed settings in the form in which a session records them: headers without their values."""
    return {name: named(value) if name == "extra_headers" else value for name, value in changes.items()}


def _addresses(settings: Settings) -> Iterator[tuple[Field, str]]:
    yield from ((field, value) for field, value in options_in(settings) if field.about.is_address and value)


def _recorded(plan: Plan, name: str, address: str | None) -> str:
    run = f"{plan.run_id}: " if plan.run_id else ""
    return f"{run}the plan has {address or 'none'} as its {name.replace('_', '-')}"
