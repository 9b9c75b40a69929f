"""Studies that measure the algorithms: theory, reliability over seeds, and a comparison of all algorithms."""
