"""Comparison of algorithms and settings: arms x seeds of one recipe, tuned and matched alike. See docs/compare.md."""
