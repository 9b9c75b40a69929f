"""An environment with a separate interpreter, for the tests of installations."""

import importlib.util


class Factory:
    """Reports what it can import as splits."""

    def __init__(self):
        import tiny_benchmark

        self.version = tiny_benchmark.VERSION

    @property
    def splits(self):
        seen = [name for name in ("numpy", "torch", "click") if importlib.util.find_spec(name)]
        return [f"tiny-benchmark {self.version}", *seen]

    def tasks(self, split):
        return []

    make = None


def prepare(folder):
    import tiny_benchmark

    (folder / "prepared").write_text(tiny_benchmark.VERSION)


def fail(folder):
    raise RuntimeError("the bundle is damaged")


def count(folder):
    with (folder.parent / "count").open("a") as file:
        file.write("x")


def mark(folder):
    (folder / "marked").touch()
