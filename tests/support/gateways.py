"""A gateway before servers that are threads of this process, with small checkpoints as its models."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import uvicorn
from checkpoints import TEXTS, build_checkpoint

from secformer.gateway.routes import make_app
from secformer.parties.launch import MemoryServers, in_memory
from secformer.parties.library import tokenizer_files
from secformer.parties.provider import Provider
from secformer.roles import CLIENT, PROVIDER
from secformer.secure_model import SecureModel
from secformer.settings import Settings

EVERYBODY = ["*"]


@dataclass
class Served:
    """Models at three servers: `model[name]` is the same in the clear."""

    servers: MemoryServers
    settings: Settings
    models: dict[str, SecureModel]

    def network(self) -> Any:
        return self.servers.network(CLIENT)

    def app(self, *names: str, token: Any = None, **changes: Any) -> Any:
        return make_app(names or tuple(self.models), self.network(), replace(self.settings, **changes), token)

    def plain(self, name: str, texts: list[str], pairs: list[str] | None = None) -> torch.Tensor:
        return self.models[name].predict(texts, pairs, mode="plain").result


@contextmanager
def served(folder: Path, **heads: str) -> Iterator[Served]:
    """Three servers with a small model for every name; `heads` says which."""
    settings = Settings(cache_folder=folder / "cache", threads=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with in_memory(settings) as servers:
        models = {name: bring(servers, folder / name, name, head) for name, head in heads.items()}
        yield Served(servers, replace(servers.settings, cache_folder=folder / "cache"), models)
    torch.set_num_threads(threads)


def bring(servers: MemoryServers, folder: Path, name: str, head: str, seed: int = 0, wild: bool = False) -> SecureModel:
    """A new checkpoint, calibrated and pushed; `wild` weights leave the calibrated ranges."""
    build_checkpoint(folder, "bert", head, seed=seed, layers=1)
    model = SecureModel.from_pretrained(folder, settings=Settings(cache_folder=folder / "cache"))
    model.calibrate(TEXTS, few=True)
    if wild:
        model.weights["layers.0.down.weight"].mul_(100)
    provider = Provider(servers.network(PROVIDER), servers.settings)
    provider.upload(name, model.card, model.folded(), EVERYBODY, tokenizer_files(folder, "bert"))
    return model


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The application at a real port of this machine; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline, "the gateway did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
