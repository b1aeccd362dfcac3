"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const theme = read("theme");
  const LEGEND_ENTRY = 190;
  const LEGEND_SYMBOL = 30;
  const LEGEND_WIDTH = 0.75;
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

  const themed = (width) => {
    const config = structuredClone(theme);
    const columns = Math.max(1, Math.min(MOST_COLUMNS, Math.floor(width / LEGEND_ENTRY)));
    config.legend.columns = columns;
    // Beside the labels of the axis, the legend has about this much of the width.
    config.legend.labelLimit = Math.floor((width * LEGEND_WIDTH) / columns) - LEGEND_SYMBOL;
    if (width < PHONE) config.axis.labelLimit = 110;
    return config;
  };

  const draw = async (chart) => {
    const width = chart.clientWidth;
    if (!width || chart.dataset.width === String(width)) return;
    chart.dataset.width = String(width);
    try {
      const drawn = await vegaEmbed(chart, fitted(figures[chart.dataset.figure], width), {
        actions: false,
        ast: true,
        config: themed(width),
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
