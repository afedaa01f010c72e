"""Every command and every Python snippet of the documents: its flags exist, and it runs."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from checkpoints import TEXTS, WORDS, build_checkpoint
from commands import command

from secformer.cli.main import app
from secformer.secure_model import SecureModel
from secformer.version import __version__

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

NOT_RUN_HERE = {
    "make": "targets of the Makefile: .ci/run runs `make lint`, `make docs` and `make test`; test_site.py looks at `make demo`",
    "docs/deploy.md": "needs five organisations: tests/deployment/test_five_parties.py and test_keyring.py run these commands",
    "docs/service.md": "needs a deployment: tests/gateway, tests/deploy and tests/deployment/test_many_sessions.py run these",
    "docs/training.md": "trains models: tests/training/test_runs.py and test_table.py run these commands on small ones",
}
"""Commands that this file only reads, and who runs them. Their flags are checked all the same."""
NO_SYNTAX = re.compile(r"\[--|\|bert-base")  # a synopsis: what may be left out is in brackets


class Snippet(NamedTuple):
    document: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str, kind: str) -> list[Snippet]:
    """Fenced blocks of a kind, with the line each begins on."""
    text = (ROOT / document).read_text()
    fenced = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [Snippet(document, text[: one.start()].count("\n") + 2, one[2]) for one in fenced if one[1] == kind]


def commands() -> list[Snippet]:
    found = []
    for document in DOCUMENTS:
        for block in blocks(document, ""):
            for offset, line in enumerate(block.text.splitlines()):
                line = re.split(r"\s+#\s", line)[0].strip()
                if re.match(r"(.*\| )?(\.venv/bin/)?secformer |make ", line):
                    found.append(Snippet(document, block.line + offset, line.replace(".venv/bin/", "")))
    return found


def arguments(line: str) -> list[str]:
    """Of the command, without what is piped in or out."""
    words = shlex.split(re.split(r" > ", re.split(r"^.*\| (?=secformer)", line)[-1])[0])
    return words[1:]


def is_here(snippet: Snippet) -> bool:
    return not snippet.text.startswith("make ") and snippet.document not in NOT_RUN_HERE


COMMANDS = commands()


def test_there_are_commands_and_every_exception_is_needed():
    assert len(COMMANDS) > 30
    assert {snippet.document for snippet in COMMANDS} >= set(NOT_RUN_HERE) - {"make"}
    text = (ROOT / "Makefile").read_text()
    for snippet in COMMANDS:
        if snippet.text.startswith("make "):
            assert re.search(rf"^{shlex.split(snippet.text)[1]}:", text, re.M), str(snippet)


@pytest.mark.parametrize("snippet", [one for one in COMMANDS if not one.text.startswith("make ")], ids=str)
def test_its_flags_exist(snippet):
    line = re.sub(r"[\[\]]", "", snippet.text).replace("FOLDER|bert-base|bert-large", "FOLDER")
    line = line.replace("--tokens N", "--tokens 8").replace("--batch B", "--batch 1")
    group, words = typer.main.get_command(app), arguments(line)
    context = group.make_context("secformer", [], resilient_parsing=True)
    while hasattr(group, "commands"):
        assert words[0] in group.commands, f"{snippet}: no command {words[0]}"
        group, words = group.commands[words[0]], words[1:]
    group.make_context(group.name, words, parent=context)


# Running them


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What the documents call FOLDER, texts.csv and so on."""
    folder = tmp_path_factory.mktemp("snippets")
    build_checkpoint(folder / "checkpoint", "bert", "classification", layers=1, heads=2, hidden=12, intermediate=16)
    shutil.copytree(folder / "checkpoint", folder / "FOLDER")
    texts = [f"{TEXTS[index % 4]} {WORDS[index % 16]}" for index in range(40)]
    pairs = "".join(f"{index}\t{text}\tthe dog ran home\n" for index, text in enumerate(texts))
    (folder / "mrpc").mkdir()
    tables = {
        "key,review\n": ["texts.csv", "reviews.csv"],
        "key\ttitle\tbody\n": ["export.tsv"],
        "index\tsentence1\tsentence2\n": ["mrpc/train.tsv"],
        "index\tpremise\thypothesis\n": ["pairs.tsv"],
    }
    for header, names in tables.items():
        rows = pairs if "\t" in header else "".join(f'{index},"{text}"\n' for index, text in enumerate(texts))
        for name in names:
            (folder / name).write_text(header + rows)
    (folder / "private.csv").write_text("text\n" + "".join(f'"{text}, privately"\n' for text in texts[:3]))
    (folder / "texts.jsonl").write_text("".join(f'{{"body": "{text}"}}\n' for text in texts[:3]))
    for name in ("lines.txt", "private.txt", "FILE"):
        (folder / name).write_text("".join(f"{text}\n" for text in (texts if name == "FILE" else texts[:3])))
    (folder / "MORE").write_text("a dog ran home\n")
    (folder / "mrpc" / "train.tsv.gz").write_bytes(gzip.compress((folder / "mrpc" / "train.tsv").read_bytes()))
    return folder


@pytest.fixture
def there(place, monkeypatch):
    """In that folder, with servers as threads of this process and speeds of some machine."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(place / "cache"))
    loaded = SecureModel.from_pretrained.__func__
    threads = classmethod(lambda cls, *given, **options: loaded(cls, *given, **{**options, "servers": "threads"}))
    monkeypatch.setattr(SecureModel, "from_pretrained", threads)
    for suite in ("exact", "fast"):
        (place / "cache" / "speeds").mkdir(parents=True, exist_ok=True)
        kept = place / "cache" / "speeds" / f"{suite}-cpu-{__version__}.json"
        kept.write_text('{"round_seconds": 1e-3, "byte_seconds": 1e-9, "product_seconds": 1e-10, "word_seconds": 1e-9}')
    return place


WITH_SERVERS = ("docs/quickstart.md",)
"""Elsewhere `run` simulates them, to be quick; README's commands are those of the quickstart."""
HERE = [one for one in COMMANDS if is_here(one) and not NO_SYNTAX.search(one.text)]


@pytest.mark.parametrize("document", sorted({one.document for one in HERE}))
def test_commands_run(there, monkeypatch, capfd, document):
    """In their order: what one leaves the next may need."""
    for name in ("answers.csv", "answers.jsonl", "simulated.csv"):
        (there / name).unlink(missing_ok=True)
    if document not in WITH_SERVERS:
        monkeypatch.setattr("secformer.cli.run.mode_named", lambda mode: "simulate")
    for snippet in (one for one in HERE if one.document == document):
        piped = "a private text\n" if "echo" in snippet.text else (there / "lines.txt").read_text()
        monkeypatch.setattr("sys.stdin", io.StringIO(piped))
        said = command(monkeypatch, capfd, *arguments(snippet.text))
        assert said.code == 0, f"{snippet}: {snippet.text}: {said.err}"


OTHER_HEADS = {"qa": "question", "choose": "choice", "lm": "masked"}
"""A model of images and its pixels are in tests/wires/test_secure_images.py."""


class Plain:
    """A small model of another head, in the clear: tests/wires ask such models securely."""

    def __init__(self, folder: str, head: str) -> None:
        build_checkpoint(folder, "bert", head, layers=1, heads=2, hidden=12, intermediate=16)
        self.model = SecureModel.from_pretrained(folder)

    def predict(self, *given):
        return self.model.predict(*given, mode="plain")


PYTHON = [document for document in DOCUMENTS if blocks(document, "python") and document not in NOT_RUN_HERE]


@pytest.mark.parametrize("document", PYTHON)
def test_python_runs(there, document):
    """The snippets of a document, one after the other, with the texts they take for granted."""
    texts = [f"{text} {word}" for text in TEXTS for word in WORDS]
    names: dict[str, object] = {"texts": texts[:4], "sample_texts": texts}
    if document == "docs/models.md":
        names |= {name: Plain(name, head) for name, head in OTHER_HEADS.items()}
    if document in ("docs/answers.md", "docs/models.md"):
        names["model"] = SecureModel.from_pretrained("checkpoint")
        names["model"].calibrate(texts)
    try:
        run_snippets(document, names, texts)
    finally:
        if "model" in names:
            names["model"].close()


def run_snippets(document: str, names: dict[str, object], texts: list[str]) -> None:
    for snippet in blocks(document, "python"):
        if "calibrate(texts)" in snippet.text:
            names["texts"] = texts
        text = re.sub(r"(?m)^images\.predict.*$", "", snippet.text)
        exec(compile(text, str(snippet), "exec"), names)  # ours, from the repository
        names["texts"] = texts[:4]
