"""Precedence, conversion and the errors of settings.py."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from secformer.errors import SettingsError
from secformer.settings import Settings, load_settings

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(autouse=True)
def clean_surroundings(tmp_path, monkeypatch):
    """No setting from the developer's own shell or folder."""
    for name in [name for name in os.environ if name.upper().startswith("SECFORMER_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def write_config(text: str, name: str = "secformer.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_the_defaults_count():
    assert load_settings() == Settings()
    assert load_settings().connections == 2
    assert load_settings().network == "none"


def test_precedence_is_flag_environment_file_default(monkeypatch):
    write_config("threads = 1\nconnections = 1\nloaded_models = 1\n")
    monkeypatch.setenv("SECFORMER_CONNECTIONS", "5")
    monkeypatch.setenv("SECFORMER_LOADED_MODELS", "6")
    settings = load_settings(loaded_models=7)
    assert (settings.threads, settings.connections, settings.loaded_models) == (1, 5, 7)
    assert settings.device == Settings().device


def test_a_flag_that_was_not_given_hides_nothing(monkeypatch):
    monkeypatch.setenv("SECFORMER_NETWORK", "wan")
    assert load_settings(network=None).network == "wan"


def test_a_flag_equal_to_the_default_still_wins(monkeypatch):
    monkeypatch.setenv("SECFORMER_CONNECTIONS", "8")
    assert load_settings(connections=2).connections == 2


def test_an_empty_variable_counts_as_absent(monkeypatch):
    monkeypatch.setenv("SECFORMER_DEVICE", "")
    assert load_settings().device == "cpu"


def test_secformer_config_names_another_file(monkeypatch):
    write_config("threads = 1\n")
    monkeypatch.setenv("SECFORMER_CONFIG", str(write_config("threads = 7\n", "other.toml")))
    assert load_settings().threads == 7


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_every_setting_can_come_from_the_environment(field, monkeypatch):
    other = {bool: "True", str: "somewhere", int: "1", float: "1.5", type(Path()): "folder"}
    value = {"network": "lan", "log_level": "error", "log_format": "json"}.get(field.name) or other[type(field.default)]
    monkeypatch.setenv(f"SECFORMER_{field.name.upper()}", value)
    assert str(getattr(load_settings(), field.name)) == value


def test_values_are_converted_and_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    write_config('identity_folder = "~/keys"\nconnect_timeout = 3\n')
    settings = load_settings()
    assert settings.identity_folder == Path("/home/somebody/keys")
    assert settings.cache_folder == Path("/home/somebody/.secformer/cache")
    assert settings.connect_timeout == 3.0


def test_without_a_home_the_folders_must_be_named(monkeypatch):
    monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(SettingsError, match="needs a home folder"):
        Settings()


def test_settings_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Settings().device = "elsewhere"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loaded_models", 0),
        ("caller_timeout", -1.0),
        ("session_timeout", float("inf")),
        ("connections", 0),
        ("threads", -1),
        ("message_limit", 0),
        ("receive_buffer", -5),
        ("receive_timeout", 0.0),
        ("receive_timeout", float("inf")),
        ("connect_timeout", float("nan")),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=name):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", "many"), ("network", "dialup"), ("connections", "2.5"), ("log_level", "loud")],
)
def test_values_of_a_wrong_type_are_refused_by_name(name, value, monkeypatch):
    monkeypatch.setenv(f"SECFORMER_{name.upper()}", value)
    with pytest.raises(SettingsError, match=rf"setting {name}: .*SECFORMER_{name.upper()}"):
        load_settings()


def test_a_misspelt_name_is_refused_everywhere_with_a_suggestion(monkeypatch):
    with pytest.raises(SettingsError, match="a flag: did you mean connections"):
        load_settings(conections=3)
    write_config("thread = 3\n")
    with pytest.raises(SettingsError, match=r"secformer\.toml: did you mean threads"):
        load_settings()
    write_config("")
    monkeypatch.setenv("SECFORMER_NETWORKS", "wan")
    with pytest.raises(SettingsError, match="the environment: did you mean network"):
        load_settings()


def test_a_file_that_is_missing_or_no_toml_is_refused(monkeypatch):
    write_config("threads == 3\n")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings()
    Path("secformer.toml").write_bytes(b"device = '\xff'")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings()
    monkeypatch.setenv("SECFORMER_CONFIG", "nowhere.toml")
    with pytest.raises(SettingsError, match=r"cannot read nowhere\.toml"):
        load_settings()


def test_the_module_imports_without_pydantic_settings():
    program = (
        "import sys; sys.modules['pydantic_settings'] = sys.modules['pydantic'] = None\n"
        "from secformer.settings import Settings; assert Settings().connections == 2"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
