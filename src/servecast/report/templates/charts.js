// Tooltips, arrow keys and legends of the charts. Without this script every point still has its numbers in a <title>.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const plots = [...document.querySelectorAll("svg.plot")];
  const visible = (point) => !point.closest(".off");
  const pointsOf = (plot) => [...plot.querySelectorAll(".pt")].filter(visible);
  const markOf = (point) => point.querySelector(".m, .part") || point;
  let lit = null;

  const make = (name, words) => Object.assign(document.createElement(name), { textContent: words });
  const hide = () => {
    if (lit) lit.classList.remove("on");
    lit = null;
    tip.hidden = true;
  };
  const show = (point) => {
    if (lit === point) return;
    hide();
    lit = point;
    point.classList.add("on");
    const [name, ...numbers] = point.told.split("\n");
    const list = document.createElement("dl");
    for (const line of numbers) {
      const at = line.indexOf(": ");
      list.append(make("dt", line.slice(0, at)), make("dd", line.slice(at + 2)));
    }
    tip.replaceChildren(make("b", name), list);
    tip.hidden = false;
    place(markOf(point));
  };
  // Beside the mark, on the side with more room, and never off the screen.
  const place = (mark) => {
    const box = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const wide = document.documentElement.clientWidth, high = window.innerHeight;
    let left = box.right + 14, top = box.top + box.height / 2 - own.height / 2;
    if (left + own.width > wide - 8) left = box.left - own.width - 14;
    if (left < 8) {
      left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), wide - own.width - 8);
      top = box.top - own.height - 14;
      if (top < 8) top = box.bottom + 14;
    }
    tip.style.left = `${Math.round(left)}px`;
    tip.style.top = `${Math.round(Math.min(Math.max(8, top), Math.max(8, high - own.height - 8)))}px`;
  };
  const nearest = (plot, x, y) => {
    let found = null, least = 44;
    for (const point of pointsOf(plot)) {
      const box = (point.querySelector(".hit, .m") || point).getBoundingClientRect();
      const dx = Math.max(box.left - x, 0, x - box.right), dy = Math.max(box.top - y, 0, y - box.bottom);
      const away = Math.hypot(dx, dy) + (dx || dy ? 0 : Math.hypot(x - box.left - box.width / 2, y - box.top - box.height / 2) / 1e3);
      if (away < least) [found, least] = [point, away];
    }
    return found;
  };
  // One stop of the tab key in each chart: the arrow keys do the rest.
  const stop = (plot, point) => {
    for (const other of plot.querySelectorAll('.pt[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    if (point) point.setAttribute("tabindex", "0");
  };
  const step = (plot, point, key) => {
    const all = pointsOf(plot), at = all.indexOf(point);
    if (key === "Home") return all[0];
    if (key === "End") return all[all.length - 1];
    if (key === "ArrowRight" || key === "ArrowLeft") return all[at + (key === "ArrowRight" ? 1 : -1)];
    const series = [...new Set(all.map((each) => each.parentNode))], own = series.indexOf(point.parentNode);
    if (series.length === 1) return all[at + (key === "ArrowDown" ? 1 : -1)];
    const next = series[(own + (key === "ArrowDown" ? 1 : -1) + series.length) % series.length];
    const x = point.getBoundingClientRect().x, off = (each) => Math.abs(each.getBoundingClientRect().x - x);
    return all.filter((each) => each.parentNode === next).reduce((a, b) => (off(b) < off(a) ? b : a));
  };

  for (const plot of plots) {
    for (const point of plot.querySelectorAll(".pt")) {
      const title = point.querySelector("title");
      point.told = title.textContent;
      title.remove(); // else the browser shows a second tooltip
    }
    stop(plot, pointsOf(plot)[0]);
    const over = (event) => {
      const point = nearest(plot, event.clientX, event.clientY);
      if (point) show(point);
      else if (!plot.contains(document.activeElement)) hide();
    };
    plot.addEventListener("pointermove", over);
    plot.addEventListener("pointerdown", over);
    plot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    plot.addEventListener("keydown", (event) => {
      const point = event.target.closest(".pt");
      if (!point || !["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      (step(plot, point, event.key) || point).focus();
    });
  }
  for (const key of document.querySelectorAll("button.key")) {
    key.addEventListener("click", () => {
      const off = key.getAttribute("aria-pressed") === "true", look = key.dataset.s;
      for (const each of document.querySelectorAll(`button.key[data-s="${look}"]`)) each.setAttribute("aria-pressed", String(!off));
      for (const each of document.querySelectorAll(`.plot [data-s="${look}"]`)) each.classList.toggle("off", off);
      for (const plot of plots) if (!plot.querySelector('.pt[tabindex="0"]') || plot.querySelector('.off.pt[tabindex="0"], .off .pt[tabindex="0"]')) stop(plot, pointsOf(plot)[0]);
      hide();
    });
  }
  // Not on the drawings themselves: one that listens to the focus would be a stop of the tab key.
  document.addEventListener("focusin", (event) => {
    const point = event.target.closest(".pt");
    if (point) { stop(point.ownerSVGElement, point); show(point); }
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("pointerdown", (event) => event.target.closest(".plot") || hide());
  // A table that goes on beyond its edge says so; one in a closed part of the page is measured once that opens.
  const edge = new ResizeObserver((seen) => {
    for (const { target } of seen) target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1);
  });
  for (const wide of document.querySelectorAll(".wide")) edge.observe(wide);
  const follow = () => {
    if (!lit) return;
    const box = markOf(lit).getBoundingClientRect();
    if (box.bottom < 0 || box.top > window.innerHeight) hide();
    else place(markOf(lit));
  };
  window.addEventListener("scroll", follow, { passive: true });
})();
