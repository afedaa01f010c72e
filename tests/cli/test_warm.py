"""Commands that are forked from a process that has imported everything."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time

import pytest
from checkpoints import build_checkpoint
from lessons import write_lessons

from secformer.cli import warm
from secformer.version import __version__


def said(arguments, log, **environment):
    child = warm.start([str(word) for word in arguments], log, {**os.environ, **environment})
    code = child.wait(120)
    assert child.poll() == child.returncode == code
    return code, log.read_text()


def test_a_command_ends_as_one_by_itself_does_and_its_log_goes_on(tmp_path):
    log = tmp_path / "log"
    assert said(["--version"], log) == (0, f"secformer {__version__}\n")
    code, text = said(["glue", "nothing"], log)
    assert code == 2 and text.startswith(f"secformer {__version__}\nerror [usage]: ")


@pytest.fixture
def evaluation(tmp_path):
    """The words of a command that needs a device."""
    build_checkpoint(
        tmp_path / "tiny", "bert", "classification", layers=1, heads=2, hidden=12, intermediate=16, labels=2
    )
    write_lessons(tmp_path / "data", train=64, dev=16)
    return ["eval", tmp_path / "tiny", "--task", "sst2", "--data", tmp_path / "data", "--mode", "plain"]


def test_it_has_the_environment_that_it_is_given(evaluation, tmp_path):
    code, text = said(evaluation, tmp_path / "log", SECFORMER_DEVICE="cuda:77")
    assert code == 2 and "device 'cuda:77' cannot be used" in text


def test_it_has_as_many_threads_as_the_environment_says():
    line = "import torch; from secformer.cli import warm; warm._follow({'OMP_NUM_THREADS': '3'}); print(torch.get_num_threads())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=environment)
    assert found.stdout == "3\n", found.stderr


def test_one_whose_gpu_cannot_be_used_after_the_fork_starts_anew(evaluation, tmp_path):
    """Nobody has this one, and the new process says so: once, as any other command."""
    assert not warm._usable(["--device", "cuda:77"]) and warm._usable(["--device", "cpu"]) and warm._usable(["cuda"])
    (tmp_path / "secformer.py").write_text("import sys; sys.exit('begun anew: ' + ' '.join(sys.argv[1:]))")
    path = {"PYTHONPATH": str(tmp_path)}
    code, text = said([*evaluation, "--device", "cuda:77"], tmp_path / "log", **path)
    assert code == 1 and text.startswith("begun anew: eval ") and text.endswith("--device cuda:77\n")


def test_it_is_ended_like_any_process(tmp_path):
    build_checkpoint(tmp_path / "tiny", "bert", "embedding", layers=1, heads=2, hidden=12, intermediate=16)
    write_lessons(tmp_path / "data", train=2000, dev=16)
    places = ["--data", tmp_path / "data", "--out", tmp_path / "rows"]
    words = ["glue", "train", tmp_path / "tiny", *places, "--task", "sst2"]
    child = warm.start([str(word) for word in words], tmp_path / "log", os.environ)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)
    assert child.poll() is None
    child.terminate()
    assert child.wait(30) in (143, -15)


@pytest.mark.parametrize("name", warm.IMPORTED)
def test_there_is_what_is_imported_ahead(name):
    """What is not there would be left out without a word."""
    assert importlib.util.find_spec(name) is not None


def test_nothing_that_is_imported_ahead_looks_at_a_gpu():
    line = """
import importlib, sys, torch
def touched(*_): sys.exit("a GPU was looked at")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda.init = torch.cuda._lazy_init = touched
from secformer.cli.warm import IMPORTED
for name in IMPORTED: importlib.import_module(name)
import os; sys.exit(len(os.listdir("/proc/self/task")) - 1)
"""
    environment = {**os.environ, **dict.fromkeys(warm.THREADS, "1")}
    found = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr  # nor leaves a thread that a fork would lack


def test_the_environment_of_whoever_starts_a_command_stays_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    said(["--version"], tmp_path / "log")
    assert os.environ["OMP_NUM_THREADS"] == "3" and "OPENBLAS_NUM_THREADS" not in os.environ


def test_nobody_waits_at_the_end_for_a_command_that_was_killed():
    """Some cannot be killed at once: a driver holds them."""
    line = """
import time
from multiprocessing import get_context
from secformer.cli.warm import Forked
process = get_context("forkserver").Process(target=time.sleep, args=(40,))
process.start()
process.kill = lambda: None
Forked(process).kill()
"""
    subprocess.run([sys.executable, "-c", line], check=True, timeout=30)


def test_imports_are_paid_once(tmp_path):
    said(["--version"], tmp_path / "log")
    began = time.monotonic()
    said(["glue", "report", "--results", tmp_path, "--out", tmp_path / "page.md"], tmp_path / "log")
    alone = [sys.executable, "-c", "import secformer.cli.glue, secformer.cli.training"]
    forked, began = time.monotonic() - began, time.monotonic()
    subprocess.run(alone, check=True)
    assert forked < time.monotonic() - began
