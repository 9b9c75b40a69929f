"""Studies: questions about the algorithms, answered by measurement."""
