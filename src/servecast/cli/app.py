"""The command line. Commands import what they need when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from servecast.cli.calibrate import calibrate
from servecast.cli.cliff import cliff
from servecast.cli.compare import compare
from servecast.cli.diff import diff
from servecast.cli.doctor import doctor
from servecast.cli.explain import explain
from servecast.cli.fit import fit
from servecast.cli.list import list_, schema
from servecast.cli.options import EXIT_INPUT, EXIT_INTERRUPTED
from servecast.cli.plan import plan
from servecast.cli.run import run
from servecast.cli.trace import trace
from servecast.cli.validate import validate
from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST_LINE = 1000  # characters: what is longer shows a value that somebody pasted

app = typer.Typer(
    name="servecast",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: what draws it takes longer to load than everything else
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Forecasts of LLM serving: batching policies compared on measured GPU step times.

Examples:

    servecast run quickstart

    servecast run my.yaml --set workload.arrivals.rate_rps=12 --out results

    servecast explain --model llama-3.1-8b --device a100-80gb --length 8192
""",
)
for command in (run, plan, diff, compare, explain, trace, list_, schema, fit, calibrate, validate, cliff, doctor):
    app.command(command.__name__.rstrip("_"))(command)


def _version(asked: bool) -> None:
    if asked:
        from servecast import __version__

        print(f"servecast {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What every command takes."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    0: done. 1: a goal or a gate was missed, or nobody reads standard output any more. 2: something must be mended, said
    in one line on standard error. 130: interrupted, what was made is kept.
    """
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.exit(_flushed(_status(arguments)))


def _status(arguments: Sequence[str] | None) -> int | str | None:
    """How the command ended; what went wrong is said."""
    try:
        app(None if arguments is None else list(arguments), prog_name="servecast")
    except InputError as error:
        print(_one_line(str(error)), file=sys.stderr)
    except BrokenPipeError:
        return 1
    except OSError as error:
        print(_one_line(f"{error.filename or 'standard output'}: {error.strerror}"), file=sys.stderr)
    except MemoryError:
        print("memory: not enough for this; ask for fewer requests, or a shorter horizon_s", file=sys.stderr)
    except KeyboardInterrupt as stopped:
        return _interrupted(stopped)
    except SystemExit as end:
        cause = end.__context__.__cause__ if end.__context__ else None
        # Typer ends a command at it without a word.
        return _interrupted(cause) if isinstance(cause, KeyboardInterrupt) else end.code
    return EXIT_INPUT


def _one_line(text: str) -> str:
    """An error on one line; of a very long one the beginning, which says where, and the end, which says what to do."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"


def _interrupted(stopped: KeyboardInterrupt) -> int:
    print(f"\n{stopped.args[0] if stopped.args else 'interrupted'}", file=sys.stderr)
    return EXIT_INTERRUPTED


def _flushed(status: int | str | None) -> int | str | None:
    """The status, after what is still buffered was written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered must not raise again when Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 1  # nobody reads any more
        if status != EXIT_INPUT:
            print(f"standard output: {error.strerror}", file=sys.stderr)
        return EXIT_INPUT
    return status
