"""What ends a training run, in words for people."""


class TrainingError(Exception):
    """Training cannot begin or go on as asked. The message says why and what to do."""
