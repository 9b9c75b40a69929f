"""The parts of pages that need no script: text, tables, and charts as SVG."""
