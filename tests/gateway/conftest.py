"""One set of servers for all tests of the gateway."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")
    from gateways import served as start

    with start(tmp_path_factory.mktemp("served"), vectors="embedding", mood="classification", words="tokens") as found:
        yield found


@pytest.fixture(scope="session")
def http(served):
    """The gateway's application, called without a socket."""
    from fastapi.testclient import TestClient

    with TestClient(served.app(), base_url="http://localhost") as client:
        yield client
