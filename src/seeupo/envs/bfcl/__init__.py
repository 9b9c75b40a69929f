"""BFCL v4 multi-turn: official tasks, backends and checker, behind parsers that never evaluate model text."""
