"""Opens a trace as lines of text: plain or gzip (told by the first bytes), UTF-8 with or without a byte order mark.

Line ends may be LF, CRLF or CR, and the last may be missing. A byte that is not UTF-8 becomes U+FFFD, so that only its
own row is malformed. Lines are numbered as an editor does.
"""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from servecast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

GZIP = b"\x1f\x8b"
PROBE = 65_536  # bytes looked at to tell text from anything else


@contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """The text of the file at ``path``. What cannot be read, or is no text, is an InputError, also later on."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            plain = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
            if b"\0" in plain.read(PROBE):
                raise InputError(path, "is not UTF-8 text; traces are read from CSV or JSON lines, plain or gzip")
            plain.seek(0)
            with io.TextIOWrapper(plain, encoding="utf-8-sig", errors="replace") as text:
                yield text
    except FileNotFoundError as error:
        raise InputError(path, "no such file; paths are relative to where the command runs, or absolute") from error
    except IsADirectoryError as error:
        raise InputError(path, "is a folder; name a file in it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(path, f"its gzip stream is damaged or cut ({error}); fetch the file again") from error
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error}); check the file") from error
