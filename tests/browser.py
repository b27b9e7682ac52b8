"""A page in Debian's Chromium, driven by playwright, without a network: for the tests and for the README's pictures."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-dev-shm-usage", "--font-render-hinting=none",
)  # fmt: skip


def missing() -> str:
    """Why pages cannot be opened here; empty if they can."""
    if shutil.which("chromium") is None:
        return "there is no chromium (on Debian: apt-get install chromium)"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed (pip install 'servecast[dev]')"
    return ""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with a profile of its own, which goes with it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page and what it did on its own: messages, errors, requests."""

    page: Any
    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def opened(
    browser: Any, path: Path, size: str = "desktop", scheme: str = "light", *, script: bool = True, dots: float = 1
) -> Iterator[Opened]:
    """The page of a file, in one of `SIZES` and `SCHEMES`."""
    width, height = SIZES[size]
    phone = size == "phone"
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=script,
        device_scale_factor=dots, is_mobile=phone, has_touch=phone, offline=True, accept_downloads=True,
        reduced_motion="reduce",  # else scrolling goes on after a mouse has arrived
    )  # fmt: skip
    try:
        one = Opened(context.new_page())
        one.page.set_default_timeout(5000)
        one.page.on("console", lambda message: one.told.append(message.text))
        one.page.on("pageerror", lambda error: one.told.append(str(error)))
        one.page.on("request", lambda request: one.asked.append(request.url))
        one.page.goto(path.resolve().as_uri())
        yield one
    finally:
        context.close()
