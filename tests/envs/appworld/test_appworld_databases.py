"""Code that goes behind the APIs changes nothing: the databases belong to a process that never runs model code."""

import pytest

from seeupo.envs.appworld.task_data import IN_SANDBOX

LOGIN = 'token = apis.simple_note.login(username="ada.quill@mail.example", password="pebble-42")["access_token"]\n'
DONE = "\napis.supervisor.complete_task()"
REAL = "posix, real_open = __import__('posix'), getattr(__import__('_io'), 'open')\n"
IMPORT = "load = __import__('importlib').import_module\n"
MODELS = IMPORT + "models = load('appworld.apps.simple_note.models')\n"
WORLD = "world = next(o for o in __import__('gc').get_objects() if type(o).__name__ == 'AppWorld')\n"
NOTE = "models.Note.create_save(user_id=1, title='Harbour', content='18:05', tags=[])\n"
OWN_DATABASES = (
    MODELS
    + "lib = load('appworld.apps.api_lib')\n"
    + "lib.set_local_dbs(':memory:mine', None, None, create=True)\n"
    + "models.User.create_save(first_name='A', last_name='Q', email='a@b.example', password='xxxxx', verified=True)\n"
)
SOCKET = "s = __import__('socket')\nplace = requester.client._transport.address\n" + (
    "def ask(path, method, headers=()):\n"
    "    with s.socket(s.AF_UNIX) as connection:\n"
    "        connection.connect(place)\n"
    "        call = dict(method=method, path=path, headers=list(headers), body='')\n"
    "        connection.sendall(json.dumps(call).encode())\n"
    "        connection.shutdown(1)\n"
    "        answer = b''.join(iter(lambda: connection.recv(65536), b''))\n"
    "        return json.loads(answer)['status'] if answer else None\n"
)
ATTACKS = {
    "write to every database file": REAL + "import os\nconnect = __import__('_sqlite3').connect\nfrontier = ['/']\n"
    "while frontier:\n"
    "    place = frontier.pop()\n"
    "    if place.startswith(('/proc', '/usr', '/sys')): continue\n"
    "    try: entries = list(os.scandir(place))\n"
    "    except OSError: continue\n"
    "    frontier += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]\n"
    "    for entry in entries:\n"
    "        if entry.name.endswith(('.db', '.jsonl')): print('reached', entry.path)\n"
    "        if entry.name == 'simple_note.db':\n"
    "            c = connect(entry.path)\n"
    "            c.execute(\"INSERT INTO notes (title, content) VALUES ('Harbour', '18:05')\"); c.commit()",
    "the engine's models": MODELS + NOTE,
    "a session": MODELS
    + "from_sqlmodel = load('sqlmodel').Session\n"
    + "with from_sqlmodel(models.SQLModel.db.engine) as session:\n"
    + "    session.add(models.Note(user_id=1, title='Harbour', content='18:05')); session.commit()",
    "own databases": OWN_DATABASES + NOTE,
    "own apps": OWN_DATABASES
    + NOTE
    + "load('appworld.apps.supervisor.models').Task.create_save(supervisor_id=1, instruction='x', status='success')\n"
    + "requester.client = load('fastapi.testclient').TestClient(load('appworld.apps').build_main_app())",
    "a patched requester": "type(requester).request = lambda *_, **__: dict(status='success', message='Note created.')",
    "a patched client": "answer = __import__('httpx').Response(200, json={})\n"
    "requester.client._transport.handle_request = lambda _: answer",
    "a call log": REAL
    + "call = dict(method='post', url='/simple_note/notes', data=dict(title='Harbour', content='18:05'))\n"
    + "requester.request_tracker.requests.append(call)\n"
    + WORLD
    + "real_open(world.output_logs_directory + '/api_calls.jsonl', 'a').write(json.dumps(call))",
    "saved changes": REAL
    + WORLD
    + "line = json.dumps(['INSERT INTO notes (title, content) VALUES (?, ?)', ['Harbour', '18:05'], False])\n"
    + "real_open(world.output_db_home_path_on_disk + '/simple_note.jsonl', 'a').write(line + '\\n')\n"
    + "type(world)._save_state = lambda *_: None",
    "all live objects": "for o in __import__('gc').get_objects():\n"
    "    name = type(o).__name__\n"
    "    if name == 'Connection' and type(o).__module__ == 'sqlite3':\n"
    "        print('reached')\n"
    "        o.execute(\"INSERT INTO notes (title, content) VALUES ('Harbour', '18:05')\"); o.commit()\n"
    "    if name == 'DBChangesTracker':\n"
    "        print('reached')\n"
    "        o.changes.append(('INSERT INTO notes (title, content) VALUES (?, ?)', ['Harbour', '18:05'], False))",
    "every open file": REAL
    + 'line = b\'{{"completed": true, "changes": {{}}}}\\n\'\n'
    + "for number in range(3, 64):\n    try: posix.write(number, line)\n    except OSError: pass",
    "administration": "requester.raise_on_failure = False\n"
    "for call in (\n"
    "    lambda: requester.post('/dbs', dict(to_db_home_path=':memory:x', from_db_home_path='/tmp', create=True)),\n"
    "    lambda: requester.post('/date_time', dict(date_and_time='2030-01-01T00:00:00')),\n"
    "    lambda: requester.request('admin', 'add_payment_card', main_user_id=1, card_name='x', owner_name='x',\n"
    "        card_number=10**15, expiry_year=2030, expiry_month=1, cvv_number=100, balance=1.0),\n"
    "    lambda: apis.admin.credit_to_card(owner_name='x', card_number=10**15, expiry_year=2030, expiry_month=1,\n"
    "        cvv_number=100, amount=1.0),\n"
    "): print(call())\n",
}


PATCHES = ("own apps", "a patched requester", "a patched client")
"""Attacks after which the code cannot call the APIs any more."""


def run(env, task, code):
    """Run code as one action and return the result and the observation."""
    env.reset(task, seed=0)
    result = env.step(f"```python\n{code}\n```")
    (message,) = result.messages
    return result, message.content


@pytest.mark.parametrize("name", ATTACKS)
def test_changes_behind_the_apis_do_not_count(env, tasks, name):
    """Code writes the note that the task asks for to whatever it can reach, and completes the task."""
    result, observation = run(env, tasks["write"], ATTACKS[name])
    assert "reached" not in observation
    assert env.score() == 0.0
    if not result.done:
        assert name in PATCHES or env.step(f"```python\n{DONE}\n```").terminated
        assert env.score() == 0.0


def test_the_attack_on_models_would_have_found_the_right_note(env, tasks):
    """The same note written through the API solves the task, so the attacks fail for no other reason."""
    note = "apis.simple_note.create_note(access_token=token, title='Harbour', content='18:05')"
    result, _ = run(env, tasks["write"], LOGIN + note + DONE)
    assert result.terminated
    assert env.score() == 1.0


def test_code_does_not_see_the_data_folder(landlock, env, tasks):
    _, observation = run(env, tasks["quest"], f"import os\nprint([entry.path for entry in os.scandir('{IN_SANDBOX}')])")
    assert "PermissionError" in observation
    place = f"{IN_SANDBOX}/base_dbs/simple_note.db"
    for path in (place, f"/proc/1/root{place}", f"/proc/self/root{place}", f"/proc/self/cwd{place}"):
        _, observation = run(env, tasks["quest"], f"{REAL}print(len(real_open('{path}', 'rb').read()))")
        assert "PermissionError" in observation, path


def test_forged_access_tokens_are_refused(env, tasks):
    """AppWorld signs its tokens with a key that is in its source code."""
    forge = (
        "jwt, expires = __import__('jwt'), datetime.datetime(2030, 1, 1)\n"
        "token = jwt.encode(dict(sub='simple_note+ada.quill@mail.example', exp=expires), 'SECRET', 'HS256')\n"
    )
    note = "apis.simple_note.create_note(access_token=token, title='Harbour', content='18:05')"
    _, observation = run(env, tasks["write"], forge + note)
    assert "401" in observation
    assert "access token is missing, invalid or expired" in observation


def test_only_documented_apis_can_be_called(env, tasks):
    """Paths are resolved by the router whose private routes were removed, so no spelling reaches them."""
    paths = [
        *("/dbs", "//dbs", "/simple_note/../dbs", "/%64bs", "/dbs/", "/dbs/save", "/seed", "/date_time", "/", "@x/dbs"),
        *("/admin/credit", "/simple_note/..%2fadmin/credit", "/docs", "/openapi.json", "/simple_note/docs", "\\n/dbs"),
    ]
    ask = f"print([ask(path, method) for path in {paths!r} for method in ('GET', 'POST', 'DELETE')])"
    _, observation = run(env, tasks["quest"], f"{SOCKET}{ask}\nprint(ask('/supervisor/active_task', 'GET'))")
    private, _, public = observation.rpartition("]")
    assert "200" not in private
    assert "200" in public


def test_calls_that_are_no_calls_do_not_disturb_the_apps(env, tasks):
    junk = (
        "for content in (b'', b'x', b'[]', b'{}', b'[' * 100000, b'{\"method\": 1}', bytes(20 << 20)):\n"
        "    with s.socket(s.AF_UNIX) as connection:\n"
        "        connection.connect(place)\n"
        "        try: connection.sendall(content); connection.shutdown(1); assert not connection.recv(1)\n"
        "        except OSError: pass\n"
        "print(ask('/supervisor/active_task', 'GET', headers=[['x' * 70000, 'y']]))\n"
        "apis.supervisor.complete_task(answer=2)"
    )
    result, observation = run(env, tasks["quest"], SOCKET + junk)
    assert result.terminated, observation
    assert env.score() == 1.0


def test_an_interrupted_call_does_not_mix_up_answers(env, tasks):
    code = (
        "transport, answers = requester.client._transport, []\n"
        "def interrupt(*_): raise KeyError('interrupted')\n"
        "signal = __import__('signal')\n"
        "signal.signal(signal.SIGUSR1, interrupt)\n"
        "socket = __import__('socket')\n"
        "shutdown = socket.socket.shutdown\n"
        "socket.socket.shutdown = lambda *a: (shutdown(*a), signal.raise_signal(signal.SIGUSR1))\n"
        "try: apis.api_docs.show_app_descriptions()\n"
        "except KeyError: answers.append('interrupted')\n"
        "socket.socket.shutdown = shutdown\n"
        "print(answers, apis.supervisor.show_active_task()['instruction'])"
    )
    _, observation = run(env, tasks["quest"], code)
    assert "['interrupted'] How many of my Simple Note notes" in observation
