"""Compare our algorithms with those of TRL and verl (`make peers`).

Both peers are installed once, into a separate environment in the cache directory; tests/peers runs in it, with our
package from src. Arguments are passed on: `checks_verl` or `checks_trl` selects one peer.
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
"""Installed without dependencies: verl requires an older transformers and packages that only a cluster needs."""

OURS = ("torch", "transformers", "accelerate")
IMPORTED = ("codetiming==1.4.0", "datasets==5.2.0", "hydra-core==1.3.8", "ray==2.60.0", "tensordict==0.10.0")
"""Dependencies of the imported functions, besides packages in the versions that we use."""


def environment() -> Path:
    """Return the interpreter with both peers; the environment is recreated if the list of packages changed."""
    folder = cache_folder() / "peers" / "algorithms"
    ready, python = folder / "ready", folder / "bin" / "python"
    ours = [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] in OURS]
    wanted = "\n".join((*ours, *IMPORTED, *PEERS))
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(PEERS)} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # torch first, so that no dependency selects another build of it
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
