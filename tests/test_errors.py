"""Every error has a code that docs/errors.md lists, and every place that raises one raises one of these."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from secformer import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "secformer"

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.SecFormerError)
}
FOREIGN = {
    "__init__.py": {"AttributeError"},  # what Python expects of a module without that name
    "engine/values.py": {"TypeError"},  # two values of kinds that do not add up: a program's defect
    "cli/commands/servers.py": {"typer.Exit"},
    "cli/main.py": {"typer.Exit"},
    "training/jobs.py": {"ValueError"},  # jobs that wait for each other: a defect of study.py
    "parties/provider.py": {"AssertionError"},  # behind an endless loop
    "engine/sharing.py": {"TypeError"},  # kinds of value that no program opens
    "bench/device.py": {"AttributeError"},  # a namespace, as Python expects
    "engine/computing.py": {"AssertionError"},  # methods that are replaced before anybody can call them
    "protocols/multiply.py": {"AssertionError"},
    "models/provenance.py": {"ValueError"},  # of a record: models/records.py makes a CalibrationError of it
    "wires/presets.py": {"ValueError"},
    "parties/caller.py": {"AssertionError"},  # behind a loop that returns or raises
    "parties/stock.py": {"OSError"},  # half a line written: made a StoreError like any refusal of the disk
    "gateway/forms.py": {"ValueError"},  # pydantic makes a 422 of it
    **{key: {"Failure"} for key in ("gateway/desk.py", "gateway/guard.py", "gateway/offers.py", "gateway/routes.py")},
    "wires/ranges.py": {"ValueError"},
    "transport/sealed.py": {"ConnectionResetError"},  # TlsChannel makes a lost connection of it
    "transport/tls_channel.py": {"AssertionError"},  # behind what raises
}
"""What else is raised, and where: nothing that a user's input leads to."""


def table() -> dict[str, str]:
    """Codes of docs/errors.md, with the class beside each."""
    return dict(re.findall(r"^\| `([a-z.]+)` \| (?:`(\w+)`|none) \|", (ROOT / "docs" / "errors.md").read_text(), re.M))


def test_the_document_lists_every_code_once():
    listed = table()
    assert listed.pop("internal") == listed.pop("usage") == ""  # of the command line alone
    assert listed == {kind.code: name for name, kind in CLASSES.items()}
    assert len({kind.code for kind in CLASSES.values()}) == len(CLASSES)


def test_the_tree_in_errors_py_lists_every_class():
    drawn = re.findall(r"[├└]── (\w+) ", errors.__doc__ or "")
    assert sorted([*drawn, "SecFormerError"]) == sorted(CLASSES)


def raised(path: Path):
    """Every `raise` of a file, as (line, name of what is raised or None for a thing made elsewhere)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            yield node.lineno, ast.unparse(made)


def is_error(name: str) -> bool:
    return isinstance(getattr(builtins, name, None), type) and issubclass(getattr(builtins, name), BaseException)


def makers(tree: ast.Module) -> set[str]:
    """Functions and methods of a file that return an error of ours, by what they say they return."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns is not None]
    return {node.name for node in functions if set(re.findall(r"\w+", ast.unparse(node.returns))) & set(CLASSES)}


def test_every_raise_site_raises_an_error_with_a_code():
    sites = wrong = 0
    made = set().union(*(makers(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")))
    for path in SOURCE.rglob("*.py"):
        place = str(path.relative_to(SOURCE))
        for line, name in raised(path):
            sites += 1
            last = name.rsplit(".", 1)[-1]
            if name in CLASSES or last in made or name in FOREIGN.get(place, set()) or caught(path, line):
                continue
            if not is_error(last) and not name[0].isupper():
                continue  # an error that is at hand: raised once already, or kept by whoever met it
            wrong += 1
            print(f"{place}:{line}: {name}")
    assert sites > 300 and wrong == 0


def caught(path: Path, line: int) -> bool:
    """Inside a `try` of the same function that turns it into an error of ours."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Try) and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0):
            raising = [each for handler in node.handlers for each in ast.walk(handler) if isinstance(each, ast.Raise)]
            names = {ast.unparse(each.exc.func) for each in raising if isinstance(each.exc, ast.Call)}
            if names & set(CLASSES):
                return True
    return False
