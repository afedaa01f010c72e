"""What peers of one protocol version say to each other does not change: each release gives the vectors of its version.

If one of these fails, either the change was not meant, or peers of the two releases would misunderstand each other: raise
PROTOCOL_VERSION (src/secformer/version.py) and run `make vectors`. A file of an earlier version is never touched.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

import vectors
from secformer.version import PROTOCOL_VERSION

SEALED = {
    2: "27bddb22934fd65075ae227a87a6d5006930b71d434be9e9521e6c4a42ca119b",
    3: "01d76d6d210859d65c657e2294631c73e4ca023293c069975e8d69dee0859d4a",
    4: "3230452ba4fa6e5d5954dd09caa8772af37f84c899884af309b8241bbcffc431",
    5: "905f4b0042a60ecfd3bc293baa5037b01f96ed81b577c0f53ffbc7889e47840a",
    6: "891a1fd32907224c51248513801d549ea9423f3f2d351940585c86bb09f7aaad",
    7: "e269e79a828316852a70cdc797459b8430633ddc54e386ffedf6486e503ea90e",
    8: "35a60aecd4487d7a508b91c40b4f8c610745dbf69abfb854e2ecc63344e058ed",
    9: "6df36552534f848e085e869b305f39ec07c54c7722dc7054177ea80ef3decb3c",
}
"""SHA-256 of the vectors of every version: an edited file is as loud as an edited engine."""


@pytest.fixture(scope="module")
def stored():
    return json.loads(vectors.path().read_text())


def test_every_version_is_sealed():
    assert PROTOCOL_VERSION in SEALED
    found = {version: hashlib.sha256(vectors.path(version).read_bytes()).hexdigest() for version in SEALED}
    assert found == SEALED


@pytest.mark.parametrize("part", vectors.PARTS)
def test_this_release_gives_the_vectors_of_its_version(part, stored):
    computed = json.loads(json.dumps(vectors.PARTS[part]()))
    assert computed.keys() == stored[part].keys()
    different = [name for name in computed if computed[name] != stored[part][name]]
    assert different == [], f"{part} changed: see the module's text"


def test_nothing_malformed_is_accepted(stored):
    assert stored["refusals"] and "accepted" not in stored["refusals"].values()


def test_the_vectors_see_a_change(monkeypatch, stored):
    """A pad drawn with another index, a header with another version: both would be noticed."""
    monkeypatch.setattr("secformer.transport.frame.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    assert vectors.frames() != stored["frames"]
    monkeypatch.setattr("secformer.engine.tape.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    assert vectors.tapes() != stored["tapes"]


def test_vectors_are_never_overwritten():
    done = subprocess.run([sys.executable, vectors.__file__], capture_output=True, text=True)
    assert done.returncode != 0 and "needs a new PROTOCOL_VERSION" in done.stderr
