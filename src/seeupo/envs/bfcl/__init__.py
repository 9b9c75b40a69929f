"""BFCL v4 multi-turn: official tasks, backends and checker, with parsers that never evaluate model text."""
