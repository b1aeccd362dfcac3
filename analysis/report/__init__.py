"""The report: results -> evidence (tables, figures) -> content (sections of plain text) -> HTML or Markdown."""
