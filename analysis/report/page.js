"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const theme = read("theme");
  // Pixels of a legend's entry: its symbol and margin, and each character, as in analysis/figures/export.py.
  const ENTRY = 40;
  const CHARACTER = 7;
  const MOST_COLUMNS = 4;
  const PANEL_MARGIN = 70;
  const PHONE = 520;

  // A chart fills its column; panels of a chart shrink, and on a phone stand one below the other.
  const fitted = (spec, width) => {
    const copy = structuredClone(spec);
    if (copy.concat) {
      copy.columns = width < PHONE ? 1 : copy.columns;
      for (const panel of copy.concat) panel.width = Math.floor(width / copy.columns) - PANEL_MARGIN;
    } else {
      copy.width = Math.min(width, 940);
      copy.autosize = { type: "fit-x", contains: "padding" };
    }
    return copy;
  };

  const themed = (width, spec) => {
    const config = structuredClone(theme);
    const entry = ENTRY + CHARACTER * spec.usermeta.legendCharacters;
    config.legend.columns = Math.max(1, Math.min(MOST_COLUMNS, Math.floor((width - PANEL_MARGIN) / entry)));
    return config;
  };

  const draw = async (chart) => {
    const width = chart.clientWidth;
    if (!width || chart.dataset.width === String(width)) return;
    chart.dataset.width = String(width);
    const spec = figures[chart.dataset.figure];
    try {
      const drawn = await vegaEmbed(chart, fitted(spec, width), {
        actions: false,
        ast: true,
        config: themed(width, spec),
        defaultStyle: false,
        renderer: "svg",
        tooltip: { disableDefaultStyle: true, theme: "page" },
      });
      if (chart.finish) chart.finish();
      chart.finish = () => drawn.finalize();
    } catch (error) {
      chart.textContent = "This figure could not be drawn: " + error.message;
      console.error(error);
    }
  };

  // Which tables are wider than the page, and whether their last column is in sight.
  const frames = [...document.querySelectorAll(".frame")];
  const look = (frame) => {
    const table = frame.firstElementChild;
    const hidden = table.scrollWidth - table.clientWidth;
    frame.toggleAttribute("data-wide", hidden > 1);
    frame.toggleAttribute("data-end", table.scrollLeft >= hidden - 1);
  };
  for (const frame of frames) {
    frame.firstElementChild.addEventListener("scroll", () => look(frame), { passive: true });
    frame.closest("details")?.addEventListener("toggle", () => look(frame));
    look(frame);
  }
  addEventListener("resize", () => frames.forEach(look));

  const charts = [...document.querySelectorAll("[data-figure]")];
  const pause = () => new Promise((resume) => setTimeout(resume, 0));
  let turn = 0;
  const drawAll = async () => {
    const mine = ++turn;
    for (const chart of charts) {
      await draw(chart);
      await pause();
      if (mine !== turn) return;
    }
    document.documentElement.dataset.charts = "drawn";
  };

  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    // Printing changes the width as well, for a moment: what is drawn scales.
    waiting = setTimeout(() => matchMedia("print").matches || drawAll(), 200);
  });
  // A link to a folded section opens it.
  const reveal = () => {
    const folded = document.getElementById(location.hash.slice(1))?.querySelector("details.folded");
    if (folded) folded.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();

  // On paper nothing can be opened.
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.folded:not([open])")) {
      each.open = true;
      each.dataset.closed = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const each of document.querySelectorAll("details[data-closed]")) {
      each.open = false;
      delete each.dataset.closed;
    }
  });
  drawAll();
})();
