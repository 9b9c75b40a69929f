import sys

if not sys.flags.safe_path:
    del sys.path[0]  # The current directory, which `seeupo` does not import from either: its files may be a stranger's.

from seeupo.cli import main

main()
