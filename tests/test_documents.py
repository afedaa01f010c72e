"""The documents keep up with the code: every module on the README's map in import order, every hop and file that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "secformer"
HOPS = 8


def module_names() -> list[str]:
    files = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py")]
    return sorted("/".join(path.parts) for path in files if path.name not in ("__init__", "__main__"))


@cache
def mapped() -> list[str]:
    """The modules of the README's map, in its order."""
    text = (ROOT / "README.md").read_text()
    section = text.split("## The map")[1].split("\n## ")[0]
    return re.findall(r"^\| `([a-z0-9_/]+)` \|", section, re.M)


def test_the_map_lists_every_module_once():
    assert sorted(mapped()) == module_names()


def imports_of(module: str) -> set[str]:
    """The modules of ours that it imports when it is loaded; what is imported inside a function is looked at later."""
    found = set()
    for node in ast.parse((SOURCE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("secformer"):
            parts = node.module.split(".")[1:]
            for alias in node.names:
                for candidate in ("/".join([*parts, alias.name]), "/".join(parts)):
                    if candidate in module_names():
                        found.add(candidate)
                        break
    return found


@pytest.mark.parametrize("module", module_names())
def test_the_map_is_in_the_order_of_imports(module):
    order = {name: place for place, name in enumerate(mapped())}
    later = [other for other in imports_of(module) if order[other] > order[module]]
    assert later == [], f"{module} stands before what it imports"


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
