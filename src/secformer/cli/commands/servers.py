"""`serve`, `init`, `doctor`: this machine as a server of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from secformer.cli.commands.options import Folder, LogFormat, Setting

app = typer.Typer(no_args_is_help=True)

Port = Annotated[Optional[int], typer.Option(min=1, max=65535, help="the port at which these call it")]  # noqa: UP045


@app.command()
def serve(
    role: Annotated[str, typer.Argument(help="server0, server1 or dealer")],
    deployment: Setting = None,
    identity: Folder = None,
    data: Annotated[Optional[Path], typer.Option(help="the folder in which models are kept")] = None,  # noqa: UP045
    listen_callers: Annotated[Optional[str], typer.Option(help="host:port on this machine for callers")] = None,  # noqa: UP045
    listen_servers: Annotated[Optional[str], typer.Option(help="host:port on this machine for servers")] = None,  # noqa: UP045
    lanes: Annotated[Optional[int], typer.Option(help="sessions at once")] = None,  # noqa: UP045
    trio: Annotated[Optional[int], typer.Option(help="which of its addresses this is, from 0")] = None,  # noqa: UP045
    threads: Annotated[Optional[int], typer.Option(help="threads of the arithmetic")] = None,  # noqa: UP045
    device: Annotated[Optional[str], typer.Option(help="torch device, such as cuda:0")] = None,  # noqa: UP045
    metrics: Annotated[Optional[str], typer.Option(help="host:port on this machine for Prometheus")] = None,  # noqa: UP045
    log_format: LogFormat = None,
) -> None:
    """Run one of the three servers until it is told to stop."""
    from secformer.parties import serve as process
    from secformer.settings import load_settings

    listening = {"listen_callers": listen_callers, "listen_servers": listen_servers}
    flags = {"deployment": deployment, "identity_folder": identity, "data_folder": data, "threads": threads}
    flags |= {"lanes": lanes, "trio": trio}
    watching = {"metrics": metrics, "log_format": log_format}
    process.serve(role, load_settings(device=device, **listening, **flags, **watching))
    process.end(0)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="the file to be written")] = Path("deployment.toml"),
    name: Annotated[str, typer.Option(help="what to call the deployment")] = "example",
    server0: Annotated[Optional[str], typer.Option(help="host of S0")] = None,  # noqa: UP045
    server1: Annotated[Optional[str], typer.Option(help="host of S1")] = None,  # noqa: UP045
    dealer: Annotated[Optional[str], typer.Option(help="host of T")] = None,  # noqa: UP045
    server0_callers: Port = None,
    server1_callers: Port = None,
    server1_servers: Port = None,
    dealer_servers: Port = None,
) -> None:
    """Write a commented deployment file. A server is called at its host, at a port for callers and one for servers."""
    from secformer.cli.deployment import init as write

    hosts = {"server0": server0, "server1": server1, "dealer": dealer}
    ports = {("server0", "callers"): server0_callers, ("server1", "callers"): server1_callers}
    ports |= {("server1", "servers"): server1_servers, ("dealer", "servers"): dealer_servers}
    write(file, name, hosts, ports)


@app.command()
def doctor(
    role: Annotated[str, typer.Argument(help="the role of this machine")],
    deployment: Setting = None,
    identity: Folder = None,
) -> None:
    """Check keys, clocks, addresses, TLS, releases and disk, and say what to do."""
    from secformer.cli.deployment import doctor as check
    from secformer.settings import load_settings

    if not check(role, load_settings(deployment=deployment, identity_folder=identity)):
        raise typer.Exit(1)
