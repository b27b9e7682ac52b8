"""Makes the pictures of the page that the README shows: ``python docs/screenshots.py`` (needs the dev extra, chromium).

Runs the quickstart into a temporary folder, opens its page in a browser without a network, and writes ``docs/images/``.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from browser import chromium, missing, opened  # noqa: E402 (the tests' own way to open a page)
from PIL import Image  # noqa: E402

import servecast  # noqa: E402
from servecast import report  # noqa: E402

LARGEST = 250_000  # bytes


def main() -> None:
    """Make every picture."""
    if missing():
        sys.exit(f"screenshots: {missing()}")
    (HERE / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = report.write(servecast.simulate(servecast.load("quickstart")), Path(folder))
        with opened(browser, page, "desktop", "light", dots=1.5) as one:
            _saved("report-desktop", one.page.screenshot())
            one.page.locator("#served").scroll_into_view_if_needed()
            one.page.evaluate("document.querySelector('#served').scrollIntoView({behavior: 'instant'})")
            point = one.page.locator("#throughput-latency [data-s='2'] .pt").nth(3)
            point.hover()
            _saved("report-hover", one.page.screenshot())
        with opened(browser, page, "phone", "dark", dots=2) as one:
            _saved("report-phone", one.page.screenshot())


def _saved(name: str, png: bytes) -> None:
    """Few colours are enough for a page, and make a small file."""
    path = HERE / "images" / f"{name}.png"
    picture = (
        Image.open(io.BytesIO(png))
        .convert("RGB")
        .quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    )
    picture.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path.relative_to(HERE.parent)}: {size / 1000:.0f} kB")
    if size > LARGEST:
        sys.exit(f"{path}: {size} bytes are more than {LARGEST}: show less, or fewer dots")


if __name__ == "__main__":
    main()
