"""Research that verifies the paper with the library; no part of it."""
