"""Reports: one HTML file with text, tables, figures and their origin; it opens from disk and needs no network."""

from selattn.views.html.document import Report, Section

__all__ = ["Report", "Section"]
