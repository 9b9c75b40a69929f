"""Compare our algorithms with those of TRL and verl (`make peers`).

Both peers are installed once, into one environment of their own in the cache folder; tests/peers runs in it, with our
package from src. Arguments are handed on: `checks_verl` or `checks_trl` for one peer only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from side_by_side import CONSTRAINTS

from seeupo.utils.cache import cache_folder

ROOT = Path(__file__).parent.parent
PEERS = ("trl==1.16.0", "verl==0.9.1")
"""Installed without their requirements: verl wants an older transformers, and things that only a cluster needs."""

OURS = ("torch", "transformers", "accelerate")
IMPORTED = ("codetiming==1.4.0", "datasets==5.2.0", "hydra-core==1.3.8", "ray==2.60.0", "tensordict==0.10.0")
"""What importing their functions needs, besides packages in the versions that we use."""


def environment() -> Path:
    """The interpreter with both peers; made again when the list of packages has changed."""
    folder = cache_folder() / "peers" / "algorithms"
    ready, python = folder / "ready", folder / "bin" / "python"
    ours = [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] in OURS]
    wanted = "\n".join((*ours, *IMPORTED, *PEERS))
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(PEERS)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # torch, before anything can ask for another build of it
        subprocess.run([*pip, *(line for line in ours if line.startswith("torch=="))], check=True)
        subprocess.run([*pip, *ours, *IMPORTED], check=True)
        subprocess.run([*pip, "--no-deps", *PEERS], check=True)
        ready.write_text(wanted)
    return python


def main() -> int:
    path = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests"))
    settings = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(environment()), "-m", "peers.run", *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | settings, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
