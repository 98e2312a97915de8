"""Reproduces the paper and makes the project's own evidence. It imports selattn; selattn never imports it."""
