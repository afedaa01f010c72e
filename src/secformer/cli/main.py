"""The command `secformer`. Its commands and their flags are in commands/, a file a group.

An error ends with one line, `error [code]: text`, and exit code 2; docs/errors.md lists the codes. Ctrl-C ends with 130, SIGTERM
with 143, a pipe that was closed with 1: none of them leaves a server or a temporary folder behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
import warnings
from types import FrameType
from typing import Annotated, Any, NoReturn, Optional

import typer

from secformer.cli.commands import glue, keys, model, remote, servers, training
from secformer.errors import MemoryLimitError, OutputError, SecFormerError
from secformer.version import __version__

app = typer.Typer(
    name="secformer",
    help="Private Transformer inference between two servers and a dealer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (model.app, servers.app, remote.app, training.app):
    app.add_typer(group)
app.add_typer(keys.keys, name="keys")
app.add_typer(glue.glue, name="glue")

LOG_LEVEL = "SECFORMER_LOG_LEVEL"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"secformer {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="and end")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="as --log-level debug")] = False,
    log_level: Annotated[Optional[str], typer.Option(help="debug, info, warning or error")] = None,  # noqa: UP045
) -> None:
    level = log_level or ("debug" if verbose else None)
    if level is None:
        return
    os.environ[LOG_LEVEL] = level  # a flag counts more than the environment, and servers started here hear of it
    from secformer.settings import load_settings

    logging.basicConfig(level=load_settings().log_level.upper(), format="%(levelname)s %(name)s: %(message)s")


def note(message: Warning | str, *_: object) -> None:
    """A warning as one line, without the source it came from."""
    print(f"note: {' '.join(str(message).split())}", file=sys.stderr)


def main(program: typer.Typer = app, name: str = "secformer") -> None:
    """Run a command line. Errors and warnings are one line, not a traceback."""
    warnings.showwarning = note
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        try:
            code = program(prog_name=name, standalone_mode=False)
        finally:
            sys.stdout.flush()  # here, where a full disk is an error like others
    except SecFormerError as error:
        _fail(error.code, str(error))
    except BrokenPipeError:  # whoever read our output has enough
        _forget_output()
        sys.exit(1)
    except OSError as error:
        _forget_output()
        _fail(OutputError.code, f"{error.filename or 'the output'}: {error.strerror or type(error).__name__}")
    except MemoryError:
        _fail(MemoryLimitError.code, _MORE_MEMORY)
    except Exception as error:
        if hasattr(error, "format_message"):  # of the library that reads the command line
            _fail_usage(error)
        if any(words in str(error).lower() for words in OUT_OF_MEMORY):
            _fail(MemoryLimitError.code, _MORE_MEMORY)
        _fail_inside(error)
    else:
        sys.exit(code if isinstance(code, int) else 0)


_MORE_MEMORY = "not enough memory: ask about fewer or shorter texts at a time (--memory), or use a larger machine"


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """As an exception, so that servers are stopped and temporary folders removed."""
    sys.exit(128 + number)


def _fail(code: str, text: str) -> NoReturn:
    print(f"error [{code}]: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(2)


def _fail_usage(error: Any) -> NoReturn:
    """Flags that cannot be read; a group without a command shows its help."""
    if "Help" in type(error).__name__:
        error.show()
        sys.exit(2)
    where = error.ctx.command_path if getattr(error, "ctx", None) else "secformer"
    _fail("usage", f"{error.format_message()} (`{where} -h` shows what there is)")


def _fail_inside(error: Exception) -> NoReturn:
    """A defect of ours. What foreign exceptions say may quote data: it is shown to those who ask with -v."""
    if os.environ.get(LOG_LEVEL, "").lower() == "debug":
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    _fail("internal", f"{type(error).__name__} at {place}: a defect of SecFormer; `secformer -v …` shows where")


def _forget_output() -> None:
    """What is still buffered would fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
