"""Studies that measure the algorithms: theory, reliability over seeds, and comparisons of arms."""
