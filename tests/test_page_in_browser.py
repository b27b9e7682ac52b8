"""The pages in a real browser without a network: silent, whole, readable at every size, by mouse, finger and keyboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import browser
import pages
import pytest

from servecast.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(bool(browser.missing()), reason=browser.missing() or "-")

MADE = {
    "swept": pages.swept,
    "single": pages.single,
    "hostile": pages.hostile,
    "plan": pages.plan,
    "bad plan": pages.bad_plan,
    "compared": pages.compared,
    "validated": pages.validated,
}
RATE = "workload.arrivals.rate_rps"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as one:
        yield one


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name.replace(" ", "-"))) for name, make in MADE.items()}


@pytest.fixture
def desktop(chromium: Any, made: dict[str, Path]) -> Iterator[browser.Opened]:
    with browser.opened(chromium, made["swept"]) as one:
        yield one


#: Text whose colour is too near to what lies behind it: below 4.5 to 1, or 3 to 1 where it is large.
PALE = """() => {
  const luminance = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || ["SCRIPT", "STYLE"].includes(node.tagName) || !node.getClientRects().length) continue;
    const style = getComputedStyle(node), inside = node.classList.contains("inside");
    const before = inside ? getComputedStyle(node.previousElementSibling).fill : ground(node);
    const ink = node instanceof SVGElement ? style.fill : style.color;
    const [light, dark] = [luminance(ink), luminance(before)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) found.push([node.textContent.trim().slice(0, 40), ratio.toFixed(2), ink, before]);
  }
  return found;
}"""

#: Elements that a screen reader could not name, headings out of order, landmarks that are missing.
UNNAMED = """() => {
  const problems = [], all = (what) => [...document.querySelectorAll(what)];
  const name = (node) => node.getAttribute("aria-label") || node.textContent.trim();
  if (!document.documentElement.lang) problems.push("lang");
  if (!document.title) problems.push("title");
  for (const what of ["main", "header", "nav", "h1"]) if (all(what).length !== 1) problems.push(`${all(what).length} ${what}`);
  const levels = all("h1, h2, h3, h4").map((node) => +node.tagName[1]);
  levels.forEach((level, at) => { if (at && level > levels[at - 1] + 1) problems.push(`h${level} after h${levels[at - 1]}`); });
  for (const node of all("img")) if (!node.alt) problems.push("img");
  for (const node of all("a, button, summary, [role=img], [role=region], [role=group], section, nav")) if (!name(node)) problems.push(node.outerHTML.slice(0, 80));
  for (const node of all("svg:not([aria-hidden]):not([role])")) problems.push(node.outerHTML.slice(0, 80));
  for (const node of all("th")) if (!node.scope) problems.push("th without scope");
  for (const node of all("[id]")) if (document.querySelectorAll(`[id="${node.id}"]`).length > 1) problems.push(`twice ${node.id}`);
  for (const node of all("a[href^='#']")) if (!document.getElementById(node.getAttribute("href").slice(1))) problems.push(node.outerHTML);
  for (const node of all("body *")) {
    const style = getComputedStyle(node), scrolls = /auto|scroll/.test(style.overflowX + style.overflowY);
    if (scrolls && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1) && node.tabIndex < 0 && !node.querySelector("[tabindex='0']")) problems.push(`unreachable ${node.outerHTML.slice(0, 60)}`);
  }
  return problems;
}"""

#: Texts of one chart that lie on each other, or leave it.
CRAMPED = """() => {
  const found = [];
  for (const plot of document.querySelectorAll("svg.plot")) {
    const edge = plot.getBoundingClientRect();
    const boxes = [...plot.querySelectorAll("text")].filter((node) => node.getClientRects().length && node.textContent.trim()).map((node) => [node.textContent, node.getBoundingClientRect(), node.getAttribute("class")]);
    boxes.forEach(([words, box, kind], at) => {
      if (box.left < edge.left - 2 || box.right > edge.right + 2 || box.bottom > edge.bottom + 2) found.push(`${plot.getAttribute("aria-label")}: ${words} is cut`);
      for (const [other, second, sort] of boxes.slice(at + 1)) {
        if (kind === "note" && sort === "note") continue;
        if (box.left + 1 < second.right && second.left + 1 < box.right && box.top + 3 < second.bottom && second.top + 3 < box.bottom) found.push(`${plot.getAttribute("aria-label")}: ${words} on ${other}`);
      }
    });
  }
  return found;
}"""


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("size", browser.SIZES)
@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_a_page_is_silent_whole_and_readable(
    chromium: Any, made: dict[str, Path], name: str, size: str, scheme: str
) -> None:
    with browser.opened(chromium, made[name], size, scheme) as one:
        assert one.told == []
        assert one.asked == [made[name].resolve().as_uri()]
        assert one.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")[0] <= browser.SIZES[size][0]
        assert one.page.evaluate(PALE) == []
        assert one.page.evaluate(UNNAMED) == []
        if "bad" not in name and name != "hostile":  # a name of sixty letters may run into another
            assert one.page.evaluate(CRAMPED) == []
        dark = one.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark is (scheme == "dark")
        small = one.page.evaluate(
            "Math.min(...[...document.querySelectorAll('.plot text')].filter((n) => n.getClientRects().length).map((n) => "
            "parseFloat(getComputedStyle(n).fontSize) * n.ownerSVGElement.getBoundingClientRect().width / 520))"
        )
        assert small >= 10  # pixels


def tip(one: browser.Opened) -> dict[str, str]:
    """The tooltip that is shown: its name, and value by label."""
    shown = one.page.locator("#tip")
    assert shown.is_visible()
    labels, values = (shown.locator(part).all_text_contents() for part in ("dt", "dd"))
    return {"": shown.locator("b").text_content(), **dict(zip(labels, values, strict=True))}


def test_a_point_tells_what_stands_in_the_summary(desktop: browser.Opened, made: dict[str, Path]) -> None:
    table = pages.summary(made["swept"])
    rows = table[(table["policy"] == "continuous") & (table[RATE] == 6)]
    assert not desktop.page.locator("#tip").is_visible()
    for chart in ("throughput-latency", "interactivity", "cost-curve", "memory"):
        point = desktop.page.locator(f"#{chart} .plot").first.locator("[data-s='2'] .pt").nth(1)
        point.scroll_into_view_if_needed()
        point.locator(".m").hover()
        told = tip(desktop)
        assert told[""] == "continuous, rate_rps 6"
        for label, column, unit in (
            ("req/s", "request_throughput_rps", 1), ("TTFT p99 [s]", "ttft_p99_s", 1),
            ("TPOT p50 [ms]", "tpot_p50_s", 1e3), ("output tok/s", "output_throughput_tps", 1),
            ("whole bill $/M output", "usd_per_mtok_output", 1), ("ITL p99 [ms]", "itl_p99_s", 1e3),
        ):  # fmt: skip
            assert told[label] == number(unit * float(rows[column].mean()), 4), label
        assert told["output tok/s/user"] == number(1 / float(rows["tpot_p50_s"].mean()), 4)
        box = desktop.page.locator("#tip").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
    desktop.page.mouse.move(3, 3)
    assert not desktop.page.locator("#tip").is_visible()


def test_a_finger_does_what_a_mouse_does(chromium: Any, made: dict[str, Path]) -> None:
    with browser.opened(chromium, made["swept"], "phone") as one:
        point = one.page.locator("#interactivity [data-s='0'] .pt").first
        point.scroll_into_view_if_needed()
        point.locator(".m").tap()
        assert tip(one)[""].startswith("static, rate_rps")
        box = one.page.locator("#tip").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        one.page.locator("#pace h2").tap()
        assert not one.page.locator("#tip").is_visible()


def test_a_keyboard_reaches_every_point(desktop: browser.Opened) -> None:
    page = desktop.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator("svg.plot").count() == page.locator('.pt[tabindex="0"]').count()  # one stop of the tab key each
    page.locator("#interactivity .key").last.focus()
    page.keyboard.press("Tab")
    seen = [tip(desktop)[""]]
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        seen.append(tip(desktop)[""])
    every = page.locator("#interactivity .pt").count()
    assert len(set(seen)) == every == 9
    page.keyboard.press("Home")
    assert tip(desktop)[""] == seen[0] == "static, rate_rps 3"
    page.keyboard.press("ArrowDown")
    assert tip(desktop)[""].startswith("padded")
    page.keyboard.press("End")
    assert tip(desktop)[""] == "continuous, rate_rps 12"
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    assert page.locator("#interactivity table").is_visible()


def test_a_file_of_the_page_is_the_file_beside_it(desktop: browser.Opened, made: dict[str, Path]) -> None:
    with desktop.page.expect_download() as waiting:
        desktop.page.get_by_role("link", name="summary.csv").click()
    assert waiting.value.suggested_filename == "summary.csv"
    assert waiting.value.path().read_bytes() == made["swept"].with_name("summary.csv").read_bytes()
    assert desktop.told == []


def test_a_file_of_a_plan_is_the_file_beside_it(chromium: Any, made: dict[str, Path]) -> None:
    with browser.opened(chromium, made["plan"]) as one:
        with one.page.expect_download() as waiting:
            one.page.get_by_role("link", name="options.csv").click()
        assert waiting.value.path().read_bytes() == made["plan"].with_name("options.csv").read_bytes()
        one.page.locator("#loads .bar").first.hover()
        assert tip(one)["each GPU [requests/s]"] == "8"
        one.page.locator("#gpus [data-s='0'] .pt").last.hover(force=True)
        assert tip(one)["GPUs"] == "3"


def test_a_legend_puts_a_policy_out_and_in(desktop: browser.Opened) -> None:
    page = desktop.page
    key = page.locator("#interactivity .key", has_text="padded")
    points = page.locator(".plot [data-s='1'] .pt")
    shown = points.evaluate_all("(all) => all.filter((each) => each.getClientRects().length).length")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert points.evaluate_all("(all) => all.filter((each) => each.getClientRects().length).length") == 0
    assert page.locator("#throughput-latency .key", has_text="padded").get_attribute("aria-pressed") == "false"
    page.locator("#interactivity .key").last.focus()
    page.keyboard.press("Tab")
    assert tip(desktop)[""].startswith("static")
    page.keyboard.press("ArrowDown")
    assert tip(desktop)[""].startswith("continuous")
    key.click()
    assert points.evaluate_all("(all) => all.filter((each) => each.getClientRects().length).length") == shown > 0


def test_a_row_of_configurations_is_a_card_on_a_phone(chromium: Any, made: dict[str, Path]) -> None:
    with browser.opened(chromium, made["plan"], "phone") as one:
        cells = one.page.locator("table.cards td").evaluate_all(
            "(all) => all.filter((each) => each.getClientRects().length).map((each) => {const box = each.getBoundingClientRect(); "
            "return [getComputedStyle(each, '::before').content.slice(1, -1), each.textContent, box.left, box.right];})"
        )
        assert ["GPUs for the target", "3"] in [cell[:2] for cell in cells]
        assert all(label and left >= 0 and right <= 390 for label, _, left, right in cells)
        assert not one.page.locator("table.cards thead th").first.is_visible() or (
            one.page.locator("table.cards thead").bounding_box()["width"] <= 1
        )


@pytest.mark.parametrize(("size", "hinted"), [("phone", True), ("desktop", False)])
def test_a_table_that_goes_on_beyond_its_edge_says_so(
    chromium: Any, made: dict[str, Path], size: str, hinted: bool
) -> None:
    with browser.opened(chromium, made["swept"], size) as one:
        table = one.page.locator("#compared .wide").first
        wide = table.evaluate("(node) => node.scrollWidth > node.clientWidth + 1")
        content = table.evaluate("(node) => getComputedStyle(node, '::after').content")
        assert ("scroll" in content) is wide is hinted
        if hinted:
            box = table.evaluate("(node) => node.getBoundingClientRect().bottom")
            assert box > 0
            table.evaluate("(node) => { node.scrollLeft = 9999; }")
            assert table.evaluate("(node) => node.scrollLeft") > 0
        one.page.emulate_media(media="print")
        assert table.evaluate("(node) => getComputedStyle(node, '::after').content") == "none"


@pytest.mark.parametrize("name", ["swept", "plan"])
def test_on_paper_nothing_is_cut_and_headings_stay_with_their_charts(
    chromium: Any, made: dict[str, Path], name: str
) -> None:
    with browser.opened(chromium, made[name]) as one:
        one.page.emulate_media(media="print")
        one.page.set_viewport_size({"width": 690, "height": 1000})  # A4 less its margins
        cut = one.page.evaluate(
            "[...document.querySelectorAll('.tiles li, .panels, table, pre')].filter((each) => "
            "each.getClientRects().length && each.getBoundingClientRect().right > 689).map((each) => each.outerHTML.slice(0, 60))"
        )
        assert cut == []
        tops = one.page.locator(".tiles li").evaluate_all(
            "(all) => all.map((each) => each.getBoundingClientRect().top)"
        )
        assert len(set(tops)) == 1
        kept = "(all) => all.map((each) => [getComputedStyle(each).breakAfter, getComputedStyle(each).breakInside])"
        assert {after for after, _ in one.page.locator("h2, figcaption").evaluate_all(kept)} == {"avoid"}
        assert {inside for _, inside in one.page.locator("figure.chart, .tiles").evaluate_all(kept)} == {"avoid"}


@pytest.mark.parametrize("name", ["swept", "plan"])
def test_a_page_prints_in_ink_on_white(chromium: Any, made: dict[str, Path], name: str) -> None:
    with browser.opened(chromium, made[name], "desktop", "dark") as one:
        pdf = one.page.pdf(format="A4", print_background=True)
        assert pdf.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) in range(2, 16)
        one.page.emulate_media(media="print", color_scheme="dark")
        assert one.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert one.page.evaluate(PALE) == []
        assert not one.page.locator("nav").is_visible()
        assert not one.page.locator(".csv").first.is_visible()


def test_without_script_every_number_is_there(chromium: Any, made: dict[str, Path]) -> None:
    with browser.opened(chromium, made["swept"], script=False) as one:
        point = one.page.locator("#interactivity [data-s='2'] .pt").first
        assert "TTFT p99 [s]: " in point.locator("title").text_content()
        assert point.get_attribute("tabindex") == "0"
        assert point.get_attribute("aria-label").startswith("continuous, rate_rps 3; output tok/s/user ")
        with one.page.expect_download() as waiting:
            one.page.get_by_role("link", name="summary.csv").click()
        assert waiting.value.path().read_bytes() == made["swept"].with_name("summary.csv").read_bytes()


def test_names_do_nothing_in_a_browser(chromium: Any, made: dict[str, Path]) -> None:
    for name in ("hostile", "bad plan"):
        with browser.opened(chromium, made[name]) as one:
            one.page.on("dialog", lambda dialog: pytest.fail(dialog.message))
            bar = one.page.locator("#tokens .bar, #loads .bar").nth(1 if name == "hostile" else 0)
            bar.scroll_into_view_if_needed()
            bar.hover()
            assert tip(one)[""] == pages.HOSTILE
            assert one.told == []
