"""A hidden folder is unreadable for the process and its children; everything else stays readable."""

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from seeupo.envs.appworld.landlock import hide
place = Path(sys.argv[1])
hide(place)
for attempt in ((place / "secret").read_text, lambda: os.listdir(place)):
    try: print(attempt())
    except PermissionError: print("refused")
child = subprocess.run(["cat", place / "secret"], capture_output=True)
print("refused" if child.returncode and not child.stdout else child.stdout)
print("others readable" if Path(os.__file__).read_text() else "")
"""


def test_a_folder_is_hidden_from_a_process_and_its_children(landlock, tmp_path):
    (tmp_path / "secret").write_text("secret")
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["refused", "refused", "refused", "others readable"], done.stderr
