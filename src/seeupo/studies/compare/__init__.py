"""Comparison of algorithms and settings: arms x seeds of a recipe, tuned and matched alike: docs/guides/compare.md."""
