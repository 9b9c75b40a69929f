"""Hostile actions against the real engine: none escapes the sandbox, sees an answer or changes a score.

AppWorld's own guard is known to be escapable, and most of these escape it on purpose (`posix`, `_io` and `ctypes` are
not guarded), so that the sandbox is tested. All of them are bounded in counts and sizes, and the canary files are
readable and writable for every user.
"""

import contextlib
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import seeupo
from campaigns import nightly_except
from seeupo.envs.appworld.task_data import IN_SANDBOX

SECRET = "a-secret-of-the-host"
IN_THE_CHECKS = "ground_truth_answer"
"""A word that occurs only in the tasks' checks."""

REAL = "posix, real_open = __import__('posix'), getattr(__import__('_io'), 'open')\n"
WORLD = "world = next(o for o in __import__('gc').get_objects() if type(o).__name__ == 'AppWorld')\n"
MODELS = "models = __import__('importlib').import_module('appworld.apps.simple_note.models')\n"

SHELL = {
    "system": REAL + "print(posix.system('echo x > {canary}/system; cat {canary}/secret'))",
    "fork and exec": REAL
    + "if posix.fork() == 0: posix.execv('/bin/sh', ['sh', '-c', 'cp {canary}/secret {canary}/exec'])",
    "posix_spawn": REAL + "posix.posix_spawn('/bin/sh', ['sh', '-c', 'touch {canary}/spawn'], {{}})",
    "popen": "import os\nprint(os.popen('cat {canary}/secret').read())",
    "subprocess": "print(__import__('subprocess').check_output(['cat', '{canary}/secret']))",
    "shell escape": "!touch {canary}/escape",
    "shell of IPython": "get_ipython().system('touch {canary}/ipython; cat {canary}/secret')",
    "libc": "__import__('ctypes').CDLL(None).system(b'touch {canary}/libc; cat {canary}/secret')",
}
FILES = {
    "open": "print(open('{canary}/secret').read())",
    "real open": REAL + "print(real_open('{canary}/secret').read())",
    "pathlib": "from pathlib import Path\nprint(Path('{canary}/secret').read_text())",
    "passwords": REAL + "print(real_open('/etc/shadow').read())",
    "environment": REAL + "print(real_open('/proc/1/environ', 'rb').read())",
    "folders": "import os\nprint([e.path for e in os.scandir('/')], [e.path for e in os.scandir('/root')])",
    "write": REAL + "real_open('{canary}/write', 'w').write('x')",
    "overwrite": REAL + "real_open('{canary}/secret', 'w').write('x')",
    "delete": REAL + "posix.unlink('{canary}/secret')",
    "link": REAL + "posix.symlink('{canary}', '/tmp/way_out')\nprint(real_open('/tmp/way_out/secret').read())",
    "the package": REAL + "import appworld\nreal_open(appworld.__file__, 'a').write('#' + ' own' + 'ed')",
    "the worker's code": REAL
    + "place = __import__('seeupo').__file__\nposix.chmod(place, 511)\nreal_open(place, 'a').write('own' + 'ed')",
    "the data": REAL + "real_open('{data}/datasets/train.txt', 'a').write('own' + 'ed_1')",
}
ANSWERS = {
    "answer file": REAL + "print(real_open('{data}/tasks/quest01_1/ground_truth/answer.json').read())",
    "checks": REAL + "print(real_open('{data}/tasks/quest01_1/ground_truth/evaluation.py').read())",
    "search": (
        "ANSWERS = ('ground_truth', 'answer.json', 'test_data.json')\n"
        "import os\nfound = []\nfrontier = ['/']\n"
        "while frontier:\n"
        "    place = frontier.pop()\n"
        "    if place.startswith(('/proc', '/usr', '/sys')): continue\n"
        "    try:\n"
        "        for entry in os.scandir(place):\n"
        "            if entry.is_dir(follow_symlinks=False): frontier.append(entry.path)\n"
        "            if 'quest01_1' in entry.path and entry.name in ANSWERS: found.append(entry.path)\n"
        "    except OSError: pass\n"
        "assert not found, found\nprint('nothing', 'found')"
    ),
    "task object": WORLD + "print(world.task.ground_truth, world.evaluate())",
    "loader": "from appworld.task import Task\nprint(Task.load('quest01_1').ground_truth.answer)",
    "evaluation": WORLD + "print(__import__('appworld').evaluator.evaluate_task('quest01_1', world.experiment_name))",
}
IMPORTS = {
    "forbidden import": "import subprocess, socket, ctypes",
    "network": (
        "s = __import__('socket')\nc = s.create_connection(('127.0.0.1', {port}), timeout=1)\nc.sendall(b'hello')"
    ),
    "internet": "s = __import__('socket')\ns.create_connection(('1.1.1.1', 53), timeout=1)",
    "name lookup": "print(__import__('socket').getaddrinfo('example.org', 80))",
    "raw socket": "s = __import__('socket')\ns.socket(s.AF_INET, s.SOCK_RAW, 1)",
}
DUNDERS = {
    "subclasses": (
        "wrap = next(c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close')\n"
        "print(wrap.__init__.__globals__['posix_spawn']('/bin/sh', ['sh', '-c', 'touch {canary}/dunder'], {{}}))"
    ),
    "globals": "print(apis.simple_note.login.__globals__['__builtins__']['open']('{canary}/secret').read())",
    "builtins": "import builtins\nbuiltins.isinstance = lambda *_: True\nbuiltins.len = None",
    "modules": "import json\n__import__('sys').modules.clear()",
    "class of everything": "type(apis).__getattr__ = lambda *_: None\ntype(requester).request = lambda *_, **__: 1 / 0",
}
EXITS = {
    "exit": "exit()",
    "system exit": "raise SystemExit(3)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "base exception": "raise BaseException('x')",
    "real exit": REAL + "posix._exit(0)",
    "kill self": REAL + "posix.kill(posix.getpid(), 9)",
    "segmentation fault": "__import__('ctypes').string_at(0)",
    "kill the engine process": REAL + "posix.kill(posix.getppid(), 9)",
    "kill all": REAL + "posix.kill(-1, 9)",
    "close all files": REAL + "posix.closerange(0, 1000)",
}
LOOPS = {
    "forever": "while True: pass",
    "forever, and stubborn": (
        "x = 0\nwhile True:\n    try:\n        while True:\n            x += 1\n    except BaseException:\n        pass"
    ),
    "deaf": "s = __import__('signal')\ns.signal(s.SIGALRM, s.SIG_IGN)\nwhile True: pass",
}
BOMBS = {
    "forks": REAL + "for _ in range(300):\n    if posix.fork() == 0: __import__('signal').pause()",
    "forks of orphans": REAL + "for _ in range(20):\n"
    "    if posix.fork() == 0:\n"
    "        posix.setsid()\n"
    "        posix.fork() and posix._exit(0)\n"
    "        __import__('signal').pause()",
    "threads": (
        "t = __import__('threading')\nwait = t.Event()\n"
        "for _ in range(300): t.Thread(target=wait.wait, daemon=True).start()"
    ),
    "memory at once": "x = bytearray(8 << 30)",
    "memory bit by bit": "x = [bytearray(64 << 20) for _ in range(128)]",
    "a large file": REAL + "f = real_open('/tmp/large', 'wb')\nfor _ in range(100): f.write(bytes(10 << 20))",
    "many files": REAL + "for i in range(100): real_open(f'/tmp/{{i}}', 'wb').write(bytes(10 << 20))",
    "open files": REAL + "files = [real_open('/dev/null') for _ in range(5000)]",
    "a deep folder": REAL + "posix.chdir('/tmp')\nfor _ in range(3000):\n    posix.mkdir('d')\n    posix.chdir('d')",
    "a locked folder": REAL
    + "posix.mkdir('/tmp/locked')\nposix.mkdir('/tmp/locked/in')\nposix.chmod('/tmp/locked', 0)",
}
SIZES = {
    "huge number": "print(10 ** (10 ** 6))",
    "huge power": "x = 7 ** 7 ** 8",
    "huge shift": "x = 1 << (1 << 62)",
    "deep brackets": "(" * 5000 + ")" * 5000,
    "deep lists": "x = " + "[" * 20000 + "]" * 20000,
    "deep recursion": "def f(): return f()\nf()",
    "deep json": "import json\njson.loads('[' * 1000000)",
    "deep answer": "x = []\nfor _ in range(100000): x = [x]\nprint(x)",
    "invalid UTF-8": "print('\udcff')",
    "printed invalid UTF-8": r"print('\udcff', '\ud800')",
    "null byte": "print(1)\x00print(2)",
    "control characters": r"print('\x1b[2J\x00\x07')",
    "a megabyte": "print('x' * (1 << 20))",
    "a hundred megabytes": "print('x' * (100 << 20))",
    "a megabyte of code": "x = '" + "x" * (1 << 20) + "'",
    "many lines": "pass\n" * 20000,
}
SCORES = {
    "patched evaluator": (
        "t = __import__('appworld').evaluator.TestTracker\nt.success = property(lambda self: True)\nt.failures = []"
    ),
    "patched saving": (
        WORLD + "type(world)._save_state = lambda *_, **__: None\ntype(world).evaluate = lambda *_, **__: True"
    ),
    "forged state on disk": REAL
    + WORLD
    + "real_open(world.output_db_home_path_on_disk + '/supervisor.jsonl', 'a').write("
    """'["ATTACH DATABASE ? AS a",["{canary}/attached"],false]\\n'); type(world)._save_state = print""",
    "state is a link": REAL + WORLD + "p = world.output_db_home_path_on_disk + '/supervisor.jsonl'\nposix.unlink(p)\n"
    "posix.symlink('/etc/passwd', p)\ntype(world)._save_state = print",
    "state is a pipe": REAL + WORLD + "p = world.output_db_home_path_on_disk + '/supervisor.jsonl'\nposix.unlink(p)\n"
    "posix.mkfifo(p)\ntype(world)._save_state = print",
    "no state": REAL
    + WORLD
    + "type(world)._save_state = lambda *_: __import__('shutil').rmtree(world.output_directory)",
    "statements": MODELS
    + "with models.SQLModel.db.engine.connect() as c: c.exec_driver_sql(\"ATTACH DATABASE '{canary}/attached' AS a\")",
    "dropped tables": MODELS + "with models.SQLModel.db.engine.connect() as c: c.exec_driver_sql('DROP TABLE notes')",
    "protocol": REAL + "import os\n"
    'line = b\'{{"id": 3, "value": 1.0}}\\n\'\n'
    "for name in os.scandir('/proc'):\n"
    "    for number in range(12):\n"
    "        try: posix.write(posix.open(f'/proc/{{name.name}}/fd/{{number}}', 1), line)\n"
    "        except OSError: pass",
    "memory of others": REAL + "import os\n"
    "done = 0\n"
    "for name in os.scandir('/proc'):\n"
    "    if name.name.isdecimal() and int(name.name) != posix.getpid():\n"
    "        try: real_open(f'/proc/{{name.name}}/mem', 'r+b'); done += 1\n"
    "        except OSError: pass\n"
    "assert not done, done\nprint('nothing', 'found')",
    "own answers": REAL + "for number in range(3, 20):\n"
    '    try: posix.write(number, b\'{{"output": 1, "completed": true, "task": {{}}}}\\n\' * 3)\n'
    "    except OSError: pass",
    "an answer without an end": REAL + "line = b'[' * (1 << 20)\n"
    "for number in range(3, 20):\n"
    "    try:\n"
    "        while True: posix.write(number, line)\n"
    "    except OSError: pass",
    "a forged error": REAL + "for number in range(3, 20):\n"
    "    try: posix.write(number, b'{{\"no_output\": \"' + b'x' * (1 << 20) + b'\", \"error\": [1]}}\\n')\n"
    "    except OSError: pass\n"
    "posix._exit(0)",
}
LIBC = "libc, pause = __import__('ctypes').CDLL(None), __import__('signal').pause\n"
WATCHED = {
    "forged names": REAL + LIBC + "if posix.fork() == 0:\n"
    "    libc.prctl(15, b'x\\x0bVmRSS:\\ty', 0, 0, 0)\n"
    "    posix._exit(0)\n"
    "print('named')",
    "an unreadable process": REAL
    + LIBC
    + "libc.prctl(4, 0, 0, 0, 0)\nif posix.fork() == 0:\n    posix.setsid()\n    pause()",
    "a first thread that ends": REAL + LIBC + "if posix.fork() == 0:\n"
    "    __import__('threading').Thread(target=pause).start()\n"
    "    libc.pthread_exit(None)",
    "shared memory": "m = __import__('mmap').mmap(-1, 100 << 20)\nm.write(b'x' * (100 << 20))\nm.madvise(4)",
    "stop the engine": REAL + "posix.kill(posix.getppid(), 19)\nprint('stopped')",
    "stop all": REAL + "posix.kill(-1, 19)\nprint('stopped')",
    "oom score": REAL + "f = real_open('/proc/self/oom_score_adj', 'w')\nf.write('-1000')\nf.close()",
    "settings": REAL + "f = real_open('/proc/sys/kernel/core_pattern', 'r+')\nf.write('|/owned')\nf.close()",
}
PAYLOADS = {**SHELL, **FILES, **ANSWERS, **IMPORTS, **DUNDERS, **EXITS, **BOMBS, **SIZES, **SCORES, **WATCHED}
FINDS_NOTHING = ("search", "memory of others")
ALWAYS = {
    "system", "libc", "real open", "overwrite", "the data", "answer file", "evaluation", "search", "network", "globals",
    "modules", "real exit", "kill the engine process", "close all files", "forever", "forks of orphans",
    "memory bit by bit", "many files", "deep answer", "a hundred megabytes", "printed invalid UTF-8",
    "patched evaluator", "forged state on disk", "statements", "protocol", "memory of others", "own answers",
    "a forged error", "forged names", "shared memory", "stop the engine",
}  # fmt: skip
"""At least one of each kind; `make nightly` runs all."""


@dataclass
class Host:
    """Targets of hostile code on the host: a world-writable folder with a secret, and a port."""

    canary: Path
    listener: socket.socket

    def port(self):
        return self.listener.getsockname()[1]

    def is_untouched(self):
        with contextlib.suppress(BlockingIOError):
            self.listener.accept()
            return False
        return [(path.name, path.read_text()) for path in self.canary.iterdir()] == [("secret", SECRET)]


@pytest.fixture(scope="module")
def host():
    canary = Path(tempfile.mkdtemp(prefix="canary-"))
    canary.chmod(0o777)
    (canary / "secret").write_text(SECRET)
    (canary / "secret").chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield Host(canary, listener)
    shutil.rmtree(canary)


@pytest.fixture
def pools(pool, impatient_pool):
    return pool, impatient_pool


@pytest.mark.parametrize("name", nightly_except(ALWAYS, [*PAYLOADS, *LOOPS]))
def test_a_hostile_action_has_no_effect(pools, tasks, host, name):
    """Code may also be stopped by the time limit, unless it has to report what it found."""
    code = {**PAYLOADS, **LOOPS}[name]
    if name not in SIZES:
        code = code.format(canary=host.canary, data=IN_SANDBOX, port=host.port())
    patient, impatient = pools
    env = (patient if name in FINDS_NOTHING else impatient).env()
    observation = run_hostile(code, env, tasks["quest"], host)
    env.close()
    if name in FINDS_NOTHING:
        assert "nothing found" in observation, observation


def run_hostile(code, env, task, host):
    """Run hostile code, check that it had no effect, and return the observation."""
    env.reset(task, seed=0)
    result = env.step(f"```python\n{code}\n```")
    (message,) = result.messages
    assert message.content
    assert len(message.content) < 21_000
    assert SECRET not in message.content
    assert IN_THE_CHECKS not in message.content
    assert "owned" not in message.content
    assert not result.terminated or result.info.get("ended_by") == "action"
    assert env.score() == 0.0
    assert host.is_untouched()
    return message.content


def test_mounted_files_are_unchanged_and_episodes_succeed(pool, env, tasks, data, python):
    """Must be the last test in this file."""
    places = [data, Path(seeupo.__file__).parent, *python.parent.parent.glob("lib/python*/site-packages/appworld")]
    written = [path for place in places for kind in ("*.py", "*.txt") for path in place.rglob(kind)]
    assert len(written) > 100
    assert not any(b"owned" in path.read_bytes().replace(b"owned_by", b"") for path in written)
    expert = pool.expert(tasks["quest"])
    assert env.step(expert(env.reset(tasks["quest"], seed=0))).terminated
    assert env.score() == 1.0
