"""Makes every picture of the docs: ``python docs/screenshots.py`` (needs the dev extra and chromium).

``docs/figures/``: figure files of shipped scenarios, as ``servecast run quickstart memory-cliff straggler`` writes them
with ``--figures png``. ``docs/images/``: the quickstart's page in a browser without a network.
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
from servecast.report.charts.files import encoded  # noqa: E402
from servecast.report.run_page import chart_sections  # noqa: E402

LARGEST = 250_000  # bytes
#: Name of a picture: scenario, and name of the chart.
FIGURES = {
    "quickstart": ("quickstart", "throughput-latency"),
    "roofline": ("quickstart", "roofline"),
    "memory-cliff": ("memory-cliff", "timeline"),
    "straggler": ("straggler", "slots"),
}


def main() -> None:
    """Make every picture."""
    if missing():
        sys.exit(f"screenshots: {missing()}")
    for folder in ("images", "figures"):
        (HERE / folder).mkdir(exist_ok=True)
    made = {name: servecast.simulate(servecast.load(name)) for name in {one: None for one, _ in FIGURES.values()}}
    for name, (scenario, chart) in FIGURES.items():
        [wanted] = [each for section in chart_sections(made[scenario]) for each in section.charts if each.name == chart]
        _saved(f"figures/{name}", encoded(wanted, "png"))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = report.write_run(made["quickstart"], Path(folder))
        with opened(browser, page, "desktop", "light", dots=1.5) as one:
            _saved("images/report-desktop", one.page.screenshot())
            one.page.locator("#served").scroll_into_view_if_needed()
            one.page.evaluate("document.querySelector('#served').scrollIntoView({behavior: 'instant'})")
            point = one.page.locator("#throughput-latency [data-s='2'] .pt").nth(3)
            point.hover()
            _saved("images/report-hover", one.page.screenshot())
        with opened(browser, page, "phone", "dark", dots=2) as one:
            _saved("images/report-phone", one.page.screenshot())


def _saved(name: str, png: bytes) -> None:
    """Few colours are enough for a page, and make a small file."""
    path = HERE / f"{name}.png"
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
