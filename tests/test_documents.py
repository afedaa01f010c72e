"""The documents keep up with the code: a short README with a map, a docstring for every module, files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "secformer"
HOPS = 8


def test_the_readme_is_short_and_maps_every_package():
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 6000
    mapped = set(re.findall(r"^\|[a-z ]*\| `([a-z]+)` \|", text, re.M))
    assert mapped == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


@pytest.mark.parametrize("file", sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")))
def test_every_module_says_what_it_is(file):
    """The site's map is made of these sentences."""
    first = (ast.get_docstring(ast.parse((SOURCE / file).read_text())) or "").splitlines()[:1]
    assert first and len(first[0]) > 10, file


def test_the_way_of_a_query_has_at_most_eight_hops_and_every_file_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    hops = re.findall(r"^\| (\d+) \| `([a-z0-9_/.]+)` \|", text, re.M)
    assert [int(number) for number, _ in hops] == list(range(1, len(hops) + 1))
    assert 5 <= len(hops) <= HOPS
    for _, file in hops:
        assert (SOURCE / file).is_file(), file


@pytest.mark.parametrize(
    "document",
    ["docs/architecture.md", "docs/extending.md", "docs/models.md", "docs/texts.md", "docs/threat-model.md"],
)
def test_files_named_in_documents_exist(document):
    names = set(re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|json))`", (ROOT / document).read_text()))
    missing = [name for name in names if not (SOURCE / name).is_file() and not (ROOT / name).is_file()]
    assert missing == []


def test_packages_list_their_modules():
    for package in sorted({path.parent for path in SOURCE.rglob("*.py")} - {SOURCE, SOURCE / "ring" / "kernels"}):
        text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        names = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
        names |= {path.parent.name for path in package.glob("*/__init__.py")}
        listed = set(re.findall(r"^ *([a-z0-9_]+)  +\S", text, re.M))
        assert names == listed, package.name
