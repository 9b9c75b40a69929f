"""Run the checks that need `bfcl-eval` in the environment's interpreter, for `test_bfcl_inside.py`.

Prints a JSON object with "passed" or a traceback for each check. The arguments are folders to import from.
"""

import json
import sys
import traceback

sys.path[:0] = sys.argv[1:]

from envs.bfcl import checks_official, checks_protocol  # noqa: E402

outcomes = {}
for module in (checks_official, checks_protocol):
    for name, check in vars(module).items():
        if name.startswith("check_"):
            try:
                check()
                outcomes[name] = "passed"
            except Exception:
                outcomes[name] = traceback.format_exc()
print(json.dumps(outcomes))
