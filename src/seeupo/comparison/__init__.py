"""Matched comparisons of algorithms and settings: studies, runs, tables and statistics."""
