"""One run of kvscope-cli, as its trace tells it."""

import collections
import json
import subprocess


class Refused(Exception):
    """What the program says where it does not run."""


def record(cli, folder, trial, work):
    """-> the document of run, [sequence] its forwards"""
    ids, trace = work / "ids.json", work / "run.kvtrace"
    ids.write_text(json.dumps(trial.prompts if len(trial.prompts) > 1 else trial.prompts[0]))
    command = [cli, "run", "--model", folder, "--prompt-ids", ids, "--method", trial.method, "--max-new-tokens",
               trial.new, "--trace", trace, "--record", "selections", "--json", "--threads", 1, *trial.options]
    for key, value in trial.settings.items():
        command += ["--set", f"{key}={value}"]
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise Refused(run.stderr.strip() or f"exit status {run.returncode}")
    export = subprocess.run([cli, "export", trace, "--what", "denoising", "--format", "jsonl"], capture_output=True,
                            text=True, check=True)
    forwards = collections.defaultdict(list)
    for line in export.stdout.splitlines():
        forward = json.loads(line)
        forwards[forward["seq"]].append(forward)
    return json.loads(run.stdout), [forwards[n] for n in range(len(trial.prompts))]
