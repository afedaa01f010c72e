"""How the command behaves whatever happens: one line for an error, signals, closed pipes, full disks, help, versions."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkpoints import build_checkpoint
from commands import command
from rich.console import Console

import secformer
from secformer.cli import costs, output
from secformer.cli.main import main
from secformer.engine.ledger import Cost
from secformer.parties.caller import Result
from secformer.parties.messages import Report
from secformer.roles import SERVERS
from secformer.transport.channel import Counters

PLAN = ("plan", "bert-base", "--tokens", "16")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Speeds of this machine are measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cached(monkeypatch, cache):
    monkeypatch.setenv("SECFORMER_CACHE_FOLDER", str(cache))


@pytest.fixture
def said(monkeypatch, capfd):
    return lambda *arguments: command(monkeypatch, capfd, *arguments)


@pytest.fixture
def failing(monkeypatch):
    """`plan` meets this."""

    def put(error: BaseException) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(costs, "plan", fail)

    return put


# Errors


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ZeroDivisionError("my secret text"), "error [internal]: ZeroDivisionError at test_manners.py:"),
        (MemoryError(), "error [memory]: not enough memory"),
        (RuntimeError("CUDA out of memory. Tried"), "error [memory]: not enough memory"),
        (OSError(28, "No space left on device"), "error [output]: the output: No space left on device"),
        (PermissionError(13, "Permission denied", "a/b"), "error [output]: a/b: Permission denied"),
    ],
)
def test_an_exception_is_one_line(said, failing, monkeypatch, error, line):
    monkeypatch.setattr("secformer.cli.main._forget_output", lambda: None)
    failing(error)
    outcome = said(*PLAN)
    assert outcome.code == 2 and outcome.err.startswith(line) and outcome.err.count("\n") == 1
    assert "secret" not in outcome.err


def test_verbose_shows_where(said, failing, monkeypatch):
    monkeypatch.setenv("SECFORMER_LOG_LEVEL", "info")  # restored afterwards
    failing(ZeroDivisionError("here"))
    outcome = said("-v", *PLAN)
    assert outcome.code == 2 and "Traceback" in outcome.err and "error [internal]" in outcome.err


BAD = [
    ("serve", "server0", "--device", "bogus"),
    ("serve", "nobody"),
    ("run", "nowhere", "--text", "x"),
    ("run", "nowhere", "--text", "x", "--memory", "0"),
    ("run", "nowhere", "--text", "x", "--limit", "-1"),
    ("plan", "nowhere"),
    ("plan", "bert-base", "--tokens", "many"),
    ("calibrate", "nowhere", "--limit", "0"),
    ("demo", "--folder", "nowhere"),
    ("demo", "--sentiment", "--folder", "nowhere"),
    ("models", "--as", "nobody"),
    ("query", "m", "--format", "xml"),
    ("push", "nowhere", "--name", "x"),
    ("access", "m"),
    ("remove", "m"),
    ("doctor", "nobody"),
    ("keys", "create", "nobody"),
    ("keys", "trust", "nowhere.crt"),
    ("keys", "distrust", "zz"),
    ("keys", "export", "client", "--out", "/nowhere/x"),
    ("finetune", "nowhere", "--task", "sst2", "--data", "nowhere", "--out", "x"),
    ("finetune", "nowhere", "--task", "sst2", "--data", "nowhere", "--out", "x", "--device", "bogus"),
    ("distill", "nowhere", "--task", "none", "--data", "nowhere", "--out", "x"),
    ("eval", "nowhere", "--task", "sst2", "--data", "nowhere"),
    ("glue", "train", "nowhere", "--data", "nowhere", "--device", "cuda:7"),
    ("glue", "report", "--results", "nowhere"),
    ("nonsense",),
    ("run", "--nonsense"),
]


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_bad_input_never_ends_in_a_traceback(said, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    for name in ("CACHE_FOLDER", "IDENTITY_FOLDER", "DATA_FOLDER"):
        monkeypatch.setenv(f"SECFORMER_{name}", str(tmp_path / "folder"))
    outcome = said(*arguments)
    assert outcome.code in (1, 2) and outcome.err and "Traceback" not in outcome.err, outcome
    assert "[internal]" not in outcome.err and re.match(r"(note: .*\n)*error \[[a-z.]+\]: .*\n$", outcome.err), (
        outcome.err
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manners")
    build_checkpoint(folder, "bert", "classification", layers=1)
    return folder


@pytest.mark.parametrize("device", ["bogus", "cuda:7", "meta", "cpu:x"])
def test_a_device_is_tried_before_anything_starts(said, monkeypatch, checkpoint, device):
    monkeypatch.setenv("SECFORMER_DEVICE", device)
    outcome = said("run", checkpoint, "--text", "cat")
    assert outcome.code == 2 and f"error [settings]: device '{device}' cannot be used" in outcome.err


# Signals and pipes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_signals_unwind(said, monkeypatch, tmp_path, number, code):
    """What a command has opened is closed: servers, temporary folders."""

    def waiting(*_: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            (tmp_path / "closed").touch()

    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    monkeypatch.setattr(costs, "plan", waiting)
    try:
        outcome = said(*PLAN)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert outcome.code == code and (tmp_path / "closed").exists() and "Traceback" not in outcome.err


def shell(line: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHON": sys.executable}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=100)


def test_closed_pipes_and_full_disks():
    done = shell('"$PYTHON" -m secformer --help | true; exit ${PIPESTATUS[0]}')
    assert done.returncode in (0, 1) and done.stderr == ""
    done = shell('"$PYTHON" -m secformer --version > /dev/full')
    assert (done.returncode, done.stderr) == (2, "error [output]: the output: No space left on device\n")


# Help, version, completion


def test_version_and_help(said, monkeypatch):
    assert said("--version") == (0, f"secformer {secformer.__version__}\n", "")
    assert said("-h").out == said("--help").out and "--install-completion" in said("-h").out
    assert "--with-text" in said("run", "-h").out.replace("\n", "")
    assert said("keys", "-h").code == 0
    monkeypatch.setenv("SECFORMER_LOG_LEVEL", "info")  # restored afterwards
    assert "error [settings]: setting log_level" in said("--log-level", "loud", *PLAN).err


def test_completion_is_offered(monkeypatch, capfd):
    monkeypatch.setenv("_SECFORMER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "secformer cal")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setattr(sys, "argv", ["secformer"])
    with pytest.raises(SystemExit):
        main()
    assert "calibrate" in capfd.readouterr().out


def test_the_package_is_typed_and_lists_its_names():
    assert (Path(secformer.__file__).parent / "py.typed").is_file()
    assert {"SecureModel", "Prediction", "Answer", "read_texts"} <= set(dir(secformer))
    for name in secformer.__all__:
        assert getattr(secformer, name) is not None


# 80 columns


def in_terminal(monkeypatch, arguments, width: int) -> str:
    """What a person sees in a terminal of this width."""
    shown = io.StringIO()
    monkeypatch.setattr(
        output, "console", lambda: Console(file=shown, force_terminal=True, width=width, highlight=False)
    )
    monkeypatch.setattr(sys, "argv", ["secformer", *arguments])
    with pytest.raises(SystemExit):
        main()
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())


WIDE = {
    "plan": PLAN,
}


@pytest.mark.parametrize("name", WIDE)
def test_tables_fit_80_columns_with_every_digit(monkeypatch, said, name):
    narrow, wide = (in_terminal(monkeypatch, WIDE[name], width) for width in (80, 300))
    assert max(map(len, narrow.splitlines())) <= 80 and "…" not in narrow
    if name == "plan":  # times are measured anew
        assert sorted(re.findall(r"[\d,.]+", narrow)) == sorted(re.findall(r"[\d,.]+", wide))


def test_costs_fit_80_columns(monkeypatch):
    report = {role: Report(role, 12.5, {"server1": Counters(10**13, 10**13, rounds=10**6)}) for role in SERVERS}
    cost = Result({}, Cost(10**6, 0, 10**12, 0, 10**13), report, 10**9, 10**9, 99.0)
    shown = io.StringIO()
    console = Console(file=shown, width=80)
    console.print(costs.cost_table({"first query": cost, "again, fresh masks": cost}))
    assert "20,000,000,000,000" in shown.getvalue() and "…" not in shown.getvalue()


def test_a_piped_table_is_plain(said):
    outcome = said(*PLAN)
    assert outcome.code == 0 and "\x1b" not in outcome.out and not set("│┃━╇") & set(outcome.out)
