from __future__ import annotations

from pathlib import Path

import pytest

from koderz.sandbox.linux import readable as module
from koderz.sandbox.linux.readable import readable


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shared libraries, by its name without links."""
    folder = tmp_path.resolve() / "lib"
    folder.mkdir()
    monkeypatch.setattr(module, "_LIBRARY_FOLDERS", (str(folder),))
    return folder


def test_libraries_are_readable_by_their_names_and_links(libraries: Path) -> None:
    elsewhere = libraries.parent / "alternatives"
    elsewhere.mkdir()
    for path in (libraries / "libone.so.1.2", elsewhere / "libtwo.so.3", libraries / "README"):
        path.touch()
    links = {
        libraries / "libone.so": "libone.so.1",
        libraries / "libone.so.1": "libone.so.1.2",
        libraries / "libtwo.so": "../alternatives/two",
        elsewhere / "two": f"{elsewhere}/libtwo.so.3",
    }
    for link, target in links.items():
        link.symlink_to(target)

    found = readable()

    assert {path for path in found.paths if path.startswith(str(libraries.parent))} == {
        str(libraries / "libone.so.1.2"),
        str(elsewhere / "libtwo.so.3"),
    }
    assert {str(link): target for link, target in links.items()}.items() <= found.links.items()
    assert {*map(Path, found.links)}.isdisjoint(map(Path, found.paths))


def test_link_that_leads_nowhere_or_in_circles_is_survived(libraries: Path) -> None:
    (libraries / "round.so").symlink_to("about.so")
    (libraries / "about.so").symlink_to("round.so")
    (libraries / "gone.so").symlink_to("nowhere.so")
    (libraries / "here.so").touch()

    paths = {path for path in readable().paths if Path(path).exists()}

    assert {path for path in paths if path.startswith(str(libraries))} == {str(libraries / "here.so")}


def test_packages_are_readable_whole_and_what_lies_beside_them_is_not(tmp_path: Path) -> None:
    package = tmp_path.resolve() / "site-packages" / "numbers"
    package.mkdir(parents=True)

    paths = readable([str(package)]).paths

    assert str(package) in paths
    assert str(package.parent) not in paths
