"""Where weights live and how they move."""
