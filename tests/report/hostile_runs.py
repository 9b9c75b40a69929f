"""A run directory in which a stranger wrote hostile text into every field that reaches the report."""

import json
from dataclasses import asdict

from report.made_runs import evaluation_of, failed_trajectory, record_of, trajectory, write_lines, write_tokenizer
from seeupo.evaluation.results import AttemptResult, Evaluation
from seeupo.runs.trajectory_files import to_json

ATTACKS = {
    "script": "</script></title></textarea><script>window.hacked = 1</script>",
    "image": "<img src=x onerror='window.hacked = 2'><svg onload='window.hacked = 3'></svg>",
    "address": "[click](javascript:window.hacked=4) <a href='javascript:window.hacked=5'>click</a> javascript:alert(6)",
    "braces": "{{constructor.constructor('window.hacked=7')()}} ${window.hacked=8} <%= hacked %> {% raw %} #{x}",
    "bidi": "safe\u202egnp.exe\u202c \u2066left\u2069 \u200bnothing \u200f\u061cmark \u0000\u0007\u001b[31m\u009b2J",
    "quotes": "\"'`><b onmouseover=alert(9) style='position:fixed'>&lt;i&gt;</b><!-- --> ]]>",
}
SHOWN = {
    **ATTACKS,
    "bidi": "safe[U+202E]gnp.exe[U+202C] [U+2066]left[U+2069] [U+200B]nothing [U+200F][U+061C]mark "
    "\u2400\u2407\u241b[31m[U+009B]2J",
}
"""The same texts as the page must show them."""
HUGE = 300_000
"""Characters of the longest texts."""


def hostile_records(attack, group, *, trained):
    """Return two attempts whose texts, names and failure are hostile."""
    text, advantage = ATTACKS[attack], 0.5 if trained else None
    call = json.dumps({"name": text, "arguments": {text: text}}, ensure_ascii=False)
    thought = f"<think>{text}</think>"
    responses = [f"{thought}{attack} action {text}", f"<tool_call>{call}</tool_call>"]
    members = [
        trajectory(f"{attack} id {text} 0", group, responses, 1.0, advantage=advantage),
        failed_trajectory(f"{attack} id {text} 1", group, [f"{attack} action {text}"], f"{attack} failure {text}"),
    ]
    records = [to_json(member) for member in members]
    for record in records:
        record |= {"task": f"{attack} task {text}", "stop": f"{attack} stop {text}"}
        record["opening"] = f"{attack} opening {text} " + "long " * (HUGE // 5 if attack == "script" else 1)
        for turn in record["turns"]:
            turn["observation"] = f"{attack} observation {text} " + "x" * (HUGE if attack == "image" else 0)
    return records


def hostile_evaluation(text):
    evaluation = evaluation_of(0.5, panel=f"panel {text}")
    plan = {**asdict(evaluation.plan), "environment": f"environment {text}", "split": text, "policy": text}
    results = {}
    for attack, hostile in ATTACKS.items():
        task = f"{attack} task {hostile}"
        for attempt in range(2):
            row = {"task": task, "kind": f"kind {text}", "attempt": attempt, "score": 1.0, "stop": text, "turns": 2}
            results[task, attempt] = AttemptResult(**row)
    return Evaluation(type(evaluation.plan)(**plan), results)


def hostile_run(run_dir, attack="script"):
    """Write the run; `attack` is used for everything that belongs to the run as a whole."""
    text = ATTACKS[attack]
    quoted = json.dumps(text)
    run_dir.mkdir(parents=True)
    (run_dir / "recipe.toml").write_text(
        f"[run]\nseed = {quoted}\niterations = 1\n[model]\nname = {quoted}\n[environment]\nname = {quoted}\n"
        f"[algorithm]\nname = {quoted}\norder = {quoted}\n[optimizer]\nlearning_rate = {quoted}\n"
        f"[collect]\ntasks = {quoted}\ngroup_size = {quoted}\n[{quoted}]\n{quoted} = {quoted}\n"
    )
    changes = [{"iteration": 1, "key": f"key {text}", "old": text, "new": {text: [text]}}]
    info = {
        "format": "seeupo-run", "version": 2, "custom_environment": f"environment {text}", "threads": text,
        "versions": {"seeupo": text, "torch": text}, "git": {"commit": text, "dirty": True}, "changes": changes,
    }  # fmt: skip
    (run_dir / "env_info.json").write_text(json.dumps(info))
    (run_dir / "summary.json").write_text(json.dumps({"reason": f"reason {text}", "model": text, "seconds": {text: 1}}))
    write_tokenizer(run_dir / "policy")
    example = trajectory("a", "g", ["done", "done"], 1.0, advantage=0.5)
    records = []
    for iteration in (1, 2):
        record = record_of(iteration, [example], 2) | {"failed_episodes": 1, text: text}
        record["timings"][f"phase {text}"] = 2.0
        record["algorithm"][text] = 1.0
        records.append(record)
    lines = [*records, {"kind": text, "iteration": 1}]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    header = {"format": "seeupo-trajectories", "version": 3}
    kinds = {f"{name} task {ATTACKS[name]}": f"{name} kind {ATTACKS[name]}" for name in ATTACKS}
    for folder, iterations in (("trajectories", (1,)), ("evaluations", (0, 1))):
        for iteration in iterations:
            members = [
                record
                for name in ATTACKS
                for record in hostile_records(name, f"{name} group {ATTACKS[name]}", trained=folder == "trajectories")
            ]
            write_lines(run_dir / folder / f"{iteration:05d}.jsonl.gz", members, header | {"kinds": kinds})
            if folder == "evaluations":
                hostile_evaluation(text).write(run_dir / folder / f"{iteration:05d}.json")
    return run_dir
