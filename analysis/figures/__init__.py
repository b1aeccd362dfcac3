"""Figures of a report, as Vega-Altair charts: interactive in the page, PNG and SVG without a browser.

`registry.figures(material)` draws all; a chart is a pure function of a table in `throughput`, `rooflines` or `shares`.
"""
