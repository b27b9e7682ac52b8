"""Results of benchmark tools that are JSON documents: one run or several in a file, each a list of requests.

The requests of a run are numbered from 1, since a document has no lines to name. Runs have clocks of their own, so one
is read at a time; where a file holds several, the user says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from servecast.errors import InputError
from servecast.workload.traces.rows import Block, Found, Malformed, Reader, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servecast.workload.traces.rows import Rejections, Row
    from servecast.workload.traces.source import Content

    Runs = list[tuple[str, list[Any]]]  # the name of each run, and its requests as they stand there

SECONDS = Found()


@dataclass(frozen=True)
class Documents(Reader):
    """A format of JSON documents.

    fitting : whether the first object or list of the file belongs to the format
    runs : the runs in one document; Malformed for one that holds none that can be read
    row : the row in a request
    merged : all documents of a file are parts of one run
    """

    fitting: Callable[[Any], bool]
    runs: Callable[[Any], Runs]
    row: Callable[[Any], Row]
    found: Found = SECONDS
    merged: bool = False
    counted: ClassVar[str] = "request"

    def find(self, content: Content, asked: bool = False) -> Found | None:
        return self.found if content.first is not None and self.fitting(content.first) else None

    def blocks(self, content: Content, found: Found, rejections: Rejections) -> Iterator[Block]:
        yield from self._parsed(content, self.row, rejections)

    def _parsed(self, content: Content, row: Callable[[Any], Row], rejections: Rejections) -> Iterator[Block]:
        requests = [request for _, run in self._chosen(content, rejections) for request in run]
        yield parsed(enumerate(requests, 1), row, rejections)

    def _chosen(self, content: Content, rejections: Rejections) -> Runs:
        """The run that was asked for."""
        runs: Runs = []
        for line, document in content.documents():
            if isinstance(document, ValueError):
                problem = f"its JSON is cut or damaged at line {line} ({document})"
                if rejections.strict or not runs:
                    raise InputError(content.path, f"{problem}; write the file again, or read what is whole: skip")
                rejections.notes.append(f"{problem}: what follows is not read")
                continue
            if not self.fitting(document):
                raise InputError(f"{content.path}:{line}", f"a document that is not {self.name}; keep them apart")
            try:
                runs += self.runs(document)
            except Malformed as fault:
                raise InputError(f"{content.path}:{line}", f"{fault.reason}; {self.signature}") from None
        part = content.part
        if self.merged or (part is None and len(runs) == 1):
            return runs
        listed = "; ".join(f"{at}: {label}, {len(run):,} requests" for at, (label, run) in enumerate(runs, 1))
        if part is None:
            raise InputError(content.path, f"holds {len(runs)} runs; choose one with part ({listed})")
        if not part <= len(runs):
            raise InputError(content.path, f"part is {part}, but there are {len(runs)} runs ({listed})")
        return [runs[part - 1]]


def listed(document: dict[str, Any], name: str, n: int | None = None) -> list[Any]:
    """The list under ``name``, of n values where a length is given; anything else is Malformed."""
    values = document.get(name)
    if not isinstance(values, list):
        raise Malformed(f"{name} is not a list", "")
    if n is not None and len(values) != n:
        raise Malformed(f"{name} has {len(values)} values, and there are {n} requests", "")
    return values


def json_object(request: Any) -> dict[str, Any]:
    """A request that is a JSON object; anything else is Malformed."""
    if not isinstance(request, dict):
        raise Malformed("request is not a JSON object", str(request))
    return request
