"""The gateway as a process: who may be let in, what it says, and that nobody below needs its packages."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command

from secformer.errors import InputError, SettingsError
from secformer.settings import Settings

pytest.importorskip("fastapi", reason="the extra `gateway` is not installed")

from secformer.deployment import Address
from secformer.gateway.guard import Token, is_loopback
from secformer.gateway.service import _https, read_token, write_token

HERE, EVERYWHERE = Address("127.0.0.1", 27180), Address("0.0.0.0", 27180)
LACKING = """
import sys
for name in ("fastapi", "uvicorn", "prometheus_client", "starlette"):
    sys.modules[name] = None
"""


def written(path: Path, text: str, mode: int = 0o600) -> Settings:
    path.write_text(text)
    path.chmod(mode)
    return Settings(gateway_token=str(path))


def test_on_this_machine_no_token_is_needed_and_beyond_it_one_is():
    assert read_token(Settings(), HERE) is None
    for host in ("0.0.0.0", "192.0.2.1", "gateway.example.org", "::"):
        with pytest.raises(SettingsError, match="name a gateway_token file"):
            read_token(Settings(), Address(host, 1))
    assert is_loopback("127.0.0.9") and is_loopback("::1") and is_loopback("localhost") and not is_loopback("10.0.0.1")


def test_a_new_token_is_long_private_and_fits(tmp_path):
    path = tmp_path / "token"
    write_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_token(Settings(gateway_token=str(path)), EVERYWHERE)
    assert found is not None and found.fits(f"Bearer {path.read_text().strip()}")
    assert path.read_text().strip() not in repr(found) + repr(vars(found))
    with pytest.raises(InputError, match="cannot be written"):
        write_token(path)


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("short\n", 0o600, "no token of at least 32"),
        ("x" * 40, 0o644, "chmod 600"),
        ("é" * 40, 0o600, "holds no token"),
    ],
)
def test_a_token_that_is_none_is_refused(tmp_path, text, mode, complaint):
    with pytest.raises(SettingsError, match=complaint):
        read_token(written(tmp_path / "token", text, mode), EVERYWHERE)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_token(Settings(gateway_token=str(tmp_path / "nothing")), EVERYWHERE)


def test_only_the_right_token_as_bearer_fits():
    token = Token("t" * 40)
    assert token.fits("Bearer " + "t" * 40) and token.fits("bearer " + "t" * 40)
    for wrong in ("", "Bearer", "t" * 40, "Basic " + "t" * 40, "Bearer " + "t" * 39, "Bearer " + "t" * 41):
        assert not token.fits(wrong)


def test_certificate_and_key_go_together(tmp_path):
    assert _https(Settings()) == {}
    for name in ("certificate", "key"):
        (tmp_path / name).write_text("")
    paths = {"gateway_certificate": str(tmp_path / "certificate"), "gateway_key": str(tmp_path / "key")}
    assert set(_https(Settings(**paths))) == {"ssl_certfile", "ssl_keyfile"}
    with pytest.raises(SettingsError, match="go together"):
        _https(Settings(gateway_certificate=paths["gateway_certificate"]))


def test_the_command_says_what_is_missing(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = command(monkeypatch, capfd, "gateway")
    assert said.code == 2 and "error [input]: name a model to offer" in said.err
    said = command(monkeypatch, capfd, "gateway", "--new-token", tmp_path / "token")
    assert said.code == 0 and (tmp_path / "token").exists()
    assert (tmp_path / "token").read_text().strip() not in said.out + said.err
    said = command(monkeypatch, capfd, "gateway", "sentiment", "--listen", "0.0.0.0:1")
    assert said.code == 2 and "error [settings]" in said.err and "--new-token" in said.err


def alone(code: str, tmp_path: Path) -> subprocess.CompletedProcess:
    """In a process to which the gateway's packages do not exist."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SECFORMER_")}
    return subprocess.run(
        [sys.executable, "-c", LACKING + code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_everything_else_imports_without_the_gateways_packages(tmp_path):
    done = alone("import secformer, secformer.cli.main, secformer.parties.launch, secformer.secure_model", tmp_path)
    assert done.returncode == 0, done.stderr


def test_whoever_lacks_them_hears_what_to_install(tmp_path):
    code = "import sys\nsys.argv = ['secformer', 'gateway', 'x']\nfrom secformer.cli.main import main\nmain()"
    done = alone(code, tmp_path)
    assert done.returncode == 2 and "pip install 'secformer[gateway]'" in done.stderr
    code = "from secformer.parties.serve import show_metrics\nshow_metrics(None, '127.0.0.1:0', None)"
    assert "metrics need the package prometheus-client" in alone(code, tmp_path).stderr
