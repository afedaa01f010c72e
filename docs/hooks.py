"""For mkdocs: the notebook as a page, with the outputs it was saved with, and a map of all modules."""

from __future__ import annotations

import ast
import base64
import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src" / "secformer"
NOTEBOOK = Path(__file__).parent / "notebooks" / "private-query.ipynb"


def on_files(files: Files, config: Any) -> Files:
    page, images = as_page(json.loads(NOTEBOOK.read_text()))
    files.append(File.generated(config, "notebook.md", content=page))
    files.append(File.generated(config, "modules.md", content=module_map()))
    for name, content in images.items():
        files.append(File.generated(config, name, content=content))
    return files


def module_map() -> str:
    """Return a page with every module of the product and the first sentence of its docstring, package by package."""
    parts = ["# Every module\n\nThe first sentence of each module, from the code."]
    for package in (SOURCE, *sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)):
        parts.append(f"## `{package.relative_to(SOURCE.parent)}`\n\n| module | what it is |\n|---|---|")
        for path in sorted(package.glob("*.py")):
            text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
            parts[-1] += f"\n| `{path.stem}` | {' '.join(text.split()).replace('|', '&#124;')} |"
    return "\n\n".join(parts) + "\n"


def as_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """Markdown, and the images it shows."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                images[f"images/notebook-{number}.png"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of cell {number}](images/notebook-{number}.png)")
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", images
