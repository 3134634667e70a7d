"""One run of kvscope-cli, as its trace and its logits tell it."""

import collections
import json
import subprocess
from dataclasses import dataclass, field

from model import read_safetensors


@dataclass
class Run:
    generated: list  # [sequence] ids
    logits: list  # [sequence] of every step
    slots: int  # of a KV head; 0: the method keeps what is on the device by its own rule
    policy: str
    origins: dict = field(default_factory=lambda: collections.defaultdict(dict))  # of the units, by place()
    hits: dict = field(default_factory=lambda: collections.defaultdict(set))  # units, by place()

    def plant(self, prompts):
        """Puts another token in the place of the first one of every choice of the first sequence and KV head, in the
        last layer: no other layer computes with it."""
        last = max(layer for _, layer, _, _ in self.origins)
        for (step, layer, sequence, g), units in self.origins.items():
            others = sorted(set(range(prompts[sequence] + step)) - set(units))
            if (layer, sequence, g) == (last, 0, 0) and others:
                units[others[step % len(others)]] = units.pop(min(units))


def place(step, layer, sequence, kv_head):
    return step, layer, sequence, kv_head


def record(cli, folder, prompts, method, settings, options, steps, work):
    ids, trace, logits = work / "ids.json", work / "run.kvtrace", work / "logits.safetensors"
    ids.write_text(json.dumps(prompts if len(prompts) > 1 else prompts[0]))
    command = [cli, "run", "--model", folder, "--prompt-ids", ids, "--method", method, "--max-new-tokens", steps + 1,
               "--ignore-eos", "--record", "selections", "--trace", trace, "--overwrite", "--logits", logits, "--json",
               *options]
    for key, value in settings.items():
        if key == "cached_blocks" and "--device-kv" in options:
            continue  # the program refuses it there: --device-kv says how many slots there are
        command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise RuntimeError(run.stderr.strip())
    said, sequences, stored = json.loads(run.stdout), range(len(prompts)), read_safetensors(logits)
    generated = collections.defaultdict(list)
    for row in rows(cli, trace, "tokens"):
        generated[row["seq"]].append(row["token_id"])
    result = Run([generated[s] for s in sequences], [stored[f"logits.{s}"] for s in sequences], said["device_slots"],
                 said["parameters"]["cache_policy"])
    for row in rows(cli, trace, "selections"):
        key = place(row["step"], row["layer"], row["seq"], row["kv_head"])
        result.origins[key][row["block"]] = row["origin"]
        if row["hit"]:
            result.hits[key].add(row["block"])
    return result


def rows(cli, trace, what):
    text = subprocess.run([str(cli), "export", str(trace), "--what", what, "--format", "jsonl"], capture_output=True,
                          text=True, check=True).stdout
    return map(json.loads, text.splitlines())
