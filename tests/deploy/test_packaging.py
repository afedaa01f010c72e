"""What lies in deploy/ speaks of commands, options, settings, ports and metrics that exist, and keeps parties apart."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from secformer.cli.main import app
from secformer.deployment import DOORS, EXAMPLE
from secformer.parties.memory import TUNABLES
from secformer.roles import SERVERS
from secformer.settings import Settings, load_settings

yaml = pytest.importorskip("yaml", reason="the package pyyaml is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
METRICS_PORT = 9464
GATEWAY_PORT = 27180
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def check_command(arguments: list[str]) -> None:
    """Raises unless `secformer ARGUMENTS` names a command, and options, that there are."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("secformer", list(arguments), resilient_parsing=False)


def test_the_check_of_commands_notices_what_does_not_exist():
    for wrong in (["serv", "server0"], ["serve", "server0", "--listen", "x"], ["serve"]):
        with pytest.raises(Exception):  # noqa: B017  # typer and click have errors of their own, by version
            check_command(wrong)


def check_settings(given: dict[str, str], monkeypatch, tmp_path) -> None:
    """Raises unless these variables are settings, with values that count."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("SECFORMER_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    load_settings()


def ours(names: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in names.items() if name.startswith("SECFORMER_")}


def ports_of(variables: dict[str, str]) -> dict[str, int]:
    return {
        name.removeprefix("SECFORMER_LISTEN_").lower(): int(value.rsplit(":", 1)[1])
        for name, value in variables.items()
        if name.startswith("SECFORMER_LISTEN_")
    }


def doors(role: str) -> dict[str, int]:
    return {door: EXAMPLE[role].doors[door].port for door in DOORS[role]}


# Containers


def test_the_image_sets_settings_that_exist(monkeypatch, tmp_path):
    text = (DEPLOY / "Containerfile").read_text()
    found = dict(re.findall(r"(SECFORMER_[A-Z_]+)=(\S+)", text))
    assert len(found) == 5
    check_settings(found, monkeypatch, tmp_path)
    torch = re.search(r"^TORCH  := (\S+)", (DEPLOY.parent / "Makefile").read_text(), re.M)
    assert torch and f"ARG TORCH={torch[1]}" in text
    assert "USER secformer" in text and "'/build[gateway]'" in text


@pytest.mark.parametrize("file", ["Containerfile", "systemd/secformer@.service"])
def test_servers_have_their_tunables(file):
    (tunable,) = TUNABLES.items()
    assert "=".join(tunable) in (DEPLOY / file).read_text()


def test_nothing_but_sources_is_sent_to_a_builder():
    for name in (".containerignore", ".dockerignore"):
        lines = (DEPLOY.parent / name).read_text().splitlines()
        assert next(line for line in lines if not line.startswith("#")) == "*"
        assert {line for line in lines if line.startswith("!")} == {"!pyproject.toml", "!README.md", "!LICENSE", "!src"}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_runs_every_server_and_a_gateway(compose, monkeypatch, tmp_path):
    assert set(compose["services"]) == {*SERVERS, "gateway"}
    for name, service in compose["services"].items():
        check_command([str(part) for part in service["command"]])
        variables = service.get("environment", {})
        check_settings(ours(variables), monkeypatch, tmp_path)
        if name in SERVERS:
            assert service["command"] == ["serve", name] and ports_of(variables) == doors(name)
            assert variables["SECFORMER_METRICS"] == f"127.0.0.1:{METRICS_PORT}"
            assert "ports" not in service
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert compose["services"]["gateway"]["ports"] == [f"127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"]


def test_compose_gives_every_party_a_network_and_a_volume_of_its_own(compose):
    folders, volumes = [], []
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = re.sub(r"\$\{[^}]*\}", "", mount.rsplit(":/", 1)[0])
            (volumes if source in compose["volumes"] else folders).append(source)
    assert len(set(folders)) == len(folders) == 4 and sorted(volumes) == sorted(compose["volumes"])
    assert len(set(volumes)) == len(volumes)
    on = {name: set(service["networks"]) for name, service in compose["services"].items()}
    assert set(compose["networks"]) == {*SERVERS, "client"} and compose["networks"]["dealer"]["internal"]
    assert on["dealer"] == {"dealer"} and "dealer" not in on["gateway"], "a client must not reach the dealer"
    for caller, called in (
        ("server0", "server1"),
        ("server0", "dealer"),
        ("server1", "dealer"),
        ("gateway", "server1"),
    ):
        assert called in on[caller]


# Kubernetes


POD = "apps.kubernetes.io/pod-index"


def documents(path: Path) -> dict[str, dict]:
    found = [document for document in yaml.safe_load_all(path.read_text()) if document]
    return {document["kind"]: document for document in found}


def test_there_is_a_manifest_for_every_role():
    assert {path.stem for path in MANIFESTS} == {*SERVERS, "gateway"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_fits_together(path, monkeypatch, tmp_path):
    found = documents(path)
    service, state, policy = found["Service"], found["StatefulSet"], found["NetworkPolicy"]
    assert len({document["metadata"]["namespace"] for document in found.values()}) == 1
    pod = state["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_command([str(part) for part in container["args"]])
    variables = {entry["name"]: entry.get("value", "0") for entry in container["env"]}  # "0": this pod's number
    assert set(variables) == set(ours(variables))
    check_settings(variables, monkeypatch, tmp_path)
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    if path.stem in SERVERS:
        assert container["args"] == ["serve", path.stem] and ports_of(variables) == doors(path.stem)
        assert named == {**doors(path.stem), "metrics": METRICS_PORT}
    labels = state["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    one = {POD: "0"} if path.stem in SERVERS else {}
    assert service["spec"]["selector"] == {**labels, **one}  # the first trio's: no two pods share an address
    numbers = [entry for entry in container["env"] if "value" not in entry]
    assert [entry["name"] for entry in numbers] == (["SECFORMER_TRIO"] if one else [])
    assert all(POD in entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in numbers)
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(named)
    opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert opened == set(named.values()) and all(rule["from"] for rule in policy["spec"]["ingress"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_pod_has_its_secrets_mounted_and_no_rights(path):
    state = documents(path)["StatefulSet"]["spec"]
    pod = state["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in state.get("volumeClaimTemplates", ())}
    for container in (*pod["containers"], *pod["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    secret = next(volume for volume in pod["volumes"] if volume["name"] == "secret")
    assert secret["secret"]["defaultMode"] == 0o400 and pod["securityContext"]["runAsNonRoot"]
    assert not any("key" in json.dumps(entry).lower() for entry in pod["containers"][0]["env"])


def test_the_dealer_calls_nobody_and_only_servers_reach_it():
    spec = documents(DEPLOY / "kubernetes" / "dealer.yaml")["NetworkPolicy"]["spec"]
    assert "Egress" in spec["policyTypes"] and spec["egress"] == []
    callers = [peer["ipBlock"]["cidr"] for rule in spec["ingress"] for peer in rule["from"] if "ipBlock" in peer]
    assert len(callers) == 2 and all(cidr.endswith("/32") for cidr in callers)


# systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_names_commands_and_settings_that_exist(unit, monkeypatch, tmp_path):
    text = unit.read_text().replace("%i", "server0").replace("$MODELS", "sentiment")
    started = re.search(r"^ExecStart=/opt/secformer/bin/secformer (.*)$", text, re.M)
    assert started
    check_command(started[1].split())
    variables = dict(re.findall(r"^Environment=(SECFORMER_[A-Z_]+)=(\S+)$", text, re.M))
    assert len(variables) >= 4
    check_settings(variables, monkeypatch, tmp_path)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_a_unit(unit, tmp_path):
    analyse = shutil.which("systemd-analyze")
    if analyse is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name.replace("@", "@server0")
    copy.write_text(unit.read_text().replace("/opt/secformer/bin/secformer", shutil.which("true") or "/bin/true"))
    done = subprocess.run([analyse, "verify", str(copy)], capture_output=True, text=True, timeout=60)
    mentioned = [line for line in done.stderr.splitlines() if "secformer" in line]
    assert done.returncode == 0 and mentioned == [], done.stderr


# Scripts


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda script: script.name)
def test_a_script_is_one(script):
    assert os.access(script, os.X_OK) and "set -euo pipefail" in script.read_text()
    subprocess.run(["bash", "-n", script], check=True, timeout=20)
    named = {name.lower() for name in re.findall(r"\bSECFORMER_([A-Z_]+)", script.read_text())}
    assert named <= {setting.name for setting in fields(Settings)}, "a variable that is no setting stops every command"


# Watching


def shown() -> set[str]:
    text = (DEPLOY / "grafana" / "secformer.json").read_text()
    expressions = [target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", ())]
    return set(re.findall(r"\b(?:secformer|process)_[a-z_]+", " ".join(expressions)))


def test_the_dashboard_shows_every_metric_there_is_and_no_other():
    pytest.importorskip("prometheus_client", reason="the extra `gateway` is not installed")
    from secformer.gateway.metrics import GatewayMetrics
    from secformer.parties.metrics import ServerMetrics

    families = [family for one in (ServerMetrics("dealer"), GatewayMetrics()) for family in one.registry.collect()]
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    known = {family.name + suffix for family in families for suffix in suffixes.get(family.type, ())}
    assert shown() <= known, shown() - known
    bare = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown()}
    assert {family.name for family in families if family.name.startswith("secformer_")} <= bare


def test_the_dashboard_is_one_grafana_takes():
    board = json.loads((DEPLOY / "grafana" / "secformer.json").read_text())
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) and board["schemaVersion"] >= 30
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${source}"


def test_prometheus_is_told_of_both_addresses():
    told = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    targets = [target for job in told["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    assert targets == [f"127.0.0.1:{METRICS_PORT}", f"127.0.0.1:{GATEWAY_PORT}"]


# The wheel


WHEEL_BYTES = 3_000_000


def wheel_files(root: Path) -> list[Path]:
    """Return the files that hatch puts into the wheel: all below its `packages`, without caches."""
    wheel = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel) == {"packages"}, "this sum knows no other key: add it here"
    found = [path for package in wheel["packages"] for path in (root / package).rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def test_the_wheel_has_at_most_3_megabytes():
    """Files are summed uncompressed, so the wheel itself is smaller."""
    files = wheel_files(DEPLOY.parent)
    assert len(files) > 100 and sum(path.stat().st_size for path in files) <= WHEEL_BYTES
