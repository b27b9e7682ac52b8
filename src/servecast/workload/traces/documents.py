"""Results of benchmark tools that are JSON documents: one run or several in a file, each a list of requests.

The requests of a run are numbered from 1, since a document has no lines to name. Runs have clocks of their own, so one
is read at a time; where a file holds several, the user says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from servecast.errors import InputError
from servecast.workload.traces.rows import SECONDS, Block, Found, Malformed, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from servecast.workload.traces.rows import Rejections, Row
    from servecast.workload.traces.source import Content


class RecordedRun(NamedTuple):
    """One run in a document: its name, its requests as they stand there, and ``row(number, request)`` for each."""

    label: str
    requests: Sequence[Any]
    row: Callable[[int, Any], Row]


@dataclass(frozen=True)
class Documents:
    """A format of JSON documents.

    fitting : whether the first object or list of the file belongs to the format
    runs : the runs in one document; Malformed for one that holds none that can be read
    merged : all documents of a file are parts of one run
    """

    name: str
    signature: str
    fitting: Callable[[Any], bool]
    runs: Callable[[Any], list[RecordedRun]]
    found: Found = SECONDS
    remark: str | None = None
    merged: bool = False

    counted = "request"

    def find(self, content: Content, asked: bool = False) -> Found | None:
        """What the format has, where the first document is of it."""
        return self.found if content.first is not None and self.fitting(content.first) else None

    def blocks(self, content: Content, rejections: Rejections) -> Iterator[Block]:
        """The requests of the run that was asked for."""
        requests = [(run.row, request) for run in self._chosen(content, rejections) for request in run.requests]
        yield parsed(enumerate(requests, 1), lambda number, one: one[0](number, one[1]), rejections)

    def _chosen(self, content: Content, rejections: Rejections) -> list[RecordedRun]:
        runs: list[RecordedRun] = []
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
        if self.merged:
            return runs
        part = content.part
        if part is None and len(runs) == 1:
            return runs
        listed = "; ".join(f"{at}: {run.label}, {len(run.requests):,} requests" for at, run in enumerate(runs, 1))
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
