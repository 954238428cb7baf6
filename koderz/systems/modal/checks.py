"""A check of Modal for `koderz doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koderz.errors import KoderzError
from koderz.settings.installation import dependency_command
from koderz.systems.modal.names import is_configured, names_of
from koderz.types import Finding


async def check_modal(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Checks that `--engine modal` and `--sandbox modal` would work, without creating or starting anything."""
    optional = "only --engine modal and --sandbox modal need it"
    if not is_configured(environ):
        return [Finding("modal", "missing", "no token here", f"{optional}: modal setup")]
    try:
        from koderz.systems.modal.cloud import has_app

        app = names_of(environ).app
        if not await has_app(app):
            told = f"--sandbox modal; no app {app} for --engine modal"
            return [Finding("modal", "ok", told, "koderz modal deploy")]
    except KoderzError as error:
        return [Finding("modal", "missing", str(error), optional)]
    except ImportError:
        return [Finding("modal", "missing", "a token without Modal's SDK", dependency_command("modal"))]
    return [Finding("modal", "ok", f"--sandbox modal, and the app {app} for --engine modal")]
