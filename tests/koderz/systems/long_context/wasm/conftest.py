"""A pool of each kind, and what is done in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from koderz.systems.long_context.wasm.cells import Kind
from koderz.systems.long_context.wasm.session import Pool

KINDS = ["wasm", "native"]
NATIVE_SLOW = ["wasm", pytest.param("native", marks=pytest.mark.slow)]  # a process each takes its time


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, holds: frozenset[str]) -> Kind:
    found: Kind = request.param
    if found == "native" and not {"landlock", "seccomp"} <= holds:
        pytest.skip("this machine doesn't contain native sessions")
    return found


@pytest.fixture(scope="module")
async def pool(kind: Kind) -> AsyncIterator[Pool]:
    """Two workers, which the tests of a module share. A secret is in their environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KODERZ_TEST_SECRET", "a key")
        async with Pool(kind, 2) as found:
            yield found
