"""The explorer: who masked whom and when it left, as one page that needs nothing but a browser."""

from selattn.views.explorer.page import Page, explore

__all__ = ["Page", "explore"]
