"""Opens a trace and shows what is in it: lines of text, JSON documents, or a Parquet table.

Text may be plain, gzip or zstandard (told by the first bytes), UTF-8 with or without a byte order mark, with LF, CRLF
or CR, and the last line end may be missing. A byte that is not UTF-8 becomes U+FFFD, so that only its own row is
malformed. Lines are numbered as an editor does. Lines are read as they are asked for; a JSON document is read whole.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

GZIP, ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
PROBE = 65_536  # bytes looked at to tell text from anything else
HEAD = 50  # lines by which a format is recognised


class Content:
    """An open file. ``path`` names it; ``part`` is the user's choice where it holds several runs (from 1).

    block_size : tokens that a prefix id stands for, if the user says it

    head : the first lines that are not blank, at most 50; none of a table
    table : the Parquet file, or None for text
    """

    def __init__(
        self,
        path: str,
        text: Iterator[str],
        part: int | None = None,
        table: Any = None,
        block_size: int | None = None,
    ) -> None:
        self.path = path
        self.part = part
        self.block_size = block_size
        self.table = table
        self.head: list[str] = []
        self._start: list[str] = []
        self._text = text
        self._whole: str | None = None
        for line in text:
            self._start.append(line)
            if line.strip():
                self.head.append(line)
            if len(self.head) == HEAD:
                break
        self.fault: str | None = None  # why it is no JSON, where it starts like one
        self.first = self._first()

    def _first(self) -> Any:
        """The first JSON object or list of the file; None where it holds none."""
        if not self.head or self.head[0].lstrip()[:1] not in ("{", "["):
            return self._object(self.head)
        goes_on = False
        try:
            first = json.loads(self.head[0])
            if isinstance(first, dict) or (len(self.head) == 1 and _holds_objects(first)):
                return first
        except json.JSONDecodeError as error:
            goes_on = error.pos >= len(self.head[0].rstrip())
        except (ValueError, RecursionError) as error:
            self.fault = str(error)
        if goes_on:
            try:
                first = json.JSONDecoder().raw_decode(self.whole.lstrip())[0]
                if isinstance(first, dict) or _holds_objects(first):
                    return first
            except json.JSONDecodeError as error:
                self.fault = f"{error.msg} at line {error.lineno}, character {error.pos:,}"
            except (ValueError, RecursionError) as error:
                self.fault = str(error)
        return self._object(self.head[1:])

    @staticmethod
    def _object(lines: list[str]) -> Any:
        for line in lines:
            if line.lstrip()[:1] == "{":
                try:
                    return json.loads(line)
                except (ValueError, RecursionError):
                    continue
        return None

    @property
    def whole(self) -> str:
        """All of the text."""
        if self._whole is None:
            self._whole = "".join(chain(self._start, self._text))
        return self._whole

    def lines(self) -> Iterator[str]:
        """All lines from the first, blank ones and header included. Asked for once."""
        if self._whole is not None:
            return iter(io.StringIO(self._whole))
        return chain(self._start, self._text)

    def documents(self) -> Iterator[tuple[int, Any]]:
        """The JSON values of the file with the lines on which they start; a ValueError as the last if it is damaged."""
        decoder, text, at = json.JSONDecoder(), self.whole, 0
        line, counted = 1, 0
        while True:
            while at < len(text) and text[at].isspace():
                at += 1
            if at >= len(text):
                return
            line, counted = line + text.count("\n", counted, at), at
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                yield line, ValueError(str(error))
                return
            yield line, value


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


@contextmanager
def opened(path: str, part: int | None = None, block_size: int | None = None) -> Iterator[Content]:
    """The content of the file at ``path``. What cannot be read is an InputError, also later on."""
    try:
        with Path(path).open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic == PARQUET:
                yield Content(path, iter(()), part, _table(path, raw), block_size)
                return
            plain = io.BufferedReader(_unpacked(raw, magic), PROBE)
            if b"\0" in plain.peek(PROBE):
                raise InputError(
                    path, "is not UTF-8 text; traces are read from CSV, JSON (plain, gzip or zstandard) and Parquet"
                )
            with io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace") as text:
                yield Content(path, text, part, block_size=block_size)
    except FileNotFoundError as error:
        raise InputError(path, "no such file; paths are relative to where the command runs, or absolute") from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder; name a file in it (ServeGen's folders are generators)") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(path, f"its gzip stream is damaged or cut ({error}); fetch the file again") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error}); check the file") from error


def _unpacked(raw: BinaryIO, magic: bytes) -> Any:
    if magic[:2] == GZIP:
        return gzip.GzipFile(fileobj=raw)
    if magic == ZSTD:
        import pyarrow

        return pyarrow.CompressedInputStream(raw, "zstd")
    return raw


def _table(path: str, raw: BinaryIO) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(raw)
    except (pyarrow.ArrowInvalid, OSError) as error:
        problem = str(error).splitlines()[0]
        raise InputError(path, f"its Parquet data is damaged or cut ({problem}); fetch the file again") from error
