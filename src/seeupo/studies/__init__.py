"""Studies that measure the algorithms: theory, credit per turn, reliability over seeds, and comparisons of arms."""
