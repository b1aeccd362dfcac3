"""Figures of a report as Vega-Altair charts: interactive in the page, PNG and SVG without a browser.

`registry.figures(material)` draws all figures. Each chart is a pure function of a table in `throughput`, `rooflines` or
`shares`.
"""
