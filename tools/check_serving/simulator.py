"""A server by a table of costs, made of algorithm.py alone, whose numbers kvscope-cli simulate must have too."""

import json
import random
import subprocess

from algorithm import Plan
from recorded import Request, Settings

MIB = 1 << 20
SHAPE = {"layers": 8, "kv_heads": 2, "block_tokens": 32, "block_bytes": 16512, "index_bytes_per_token": 256,
         "selected_blocks": 16, "hidden": 384, "host_run_blocks": 1, "piece_tokens": 512, "pauses_in_layer": True,
         "resident_layers": 0}


def percentile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    below = int(at)
    above = values[min(below + 1, len(values) - 1)]
    return values[below] + (at - below) * (above - values[below])


def value_of(text):
    """The value of a knob: a number, a truth, or the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Simulated(Request):
    """A request whose working set follows from the share of a selection that drifts in a step."""

    def __init__(self, number, line, settings):
        super().__init__({"request": number, "arrival_ns": line["timestamp"] * 1_000_000, "end_ns": None, "status": "",
                          "prompt_tokens": line["input_length"], "max_tokens": line["output_length"], "row": None,
                          "slo_ttft_ms": 0, "host_bytes": 0, "device_bytes": 0}, settings)
        self.token_times, self.scheduled, self.steps_made = [], None, 0
        every_head = settings.layers * settings.heads * settings.block_bytes
        self.device = (self.prompt + self.tokens) * settings.index_bytes + every_head  # the index by tokens
        if not settings.pooled:
            self.working_set = settings.partition(1 << 60) * every_head
            if not settings.control:
                self.hard = self.working_set

    def decode(self, now, settings):
        self.generated += 1
        self.since_resume += 1
        self.steps_made += 1
        self.token_times.append(now)
        if settings.pooled:
            blocks = -(-(self.prompt + self.generated) // settings.block_tokens)
            every_head = settings.layers * settings.heads * settings.block_bytes
            grown = 1 + settings.costs["drift"] * (min(self.steps_made, settings.window) - 1)
            self.working_set = min(blocks * every_head, int(min(settings.selected, blocks) * every_head * grown))


def serve(requests, settings):
    """Serves all requests. Returns how many iterations and pauses there were."""
    now = over = iterations = pauses = 0
    running, paused = [], []
    while any(request.state != "gone" for request in requests):
        waiting = [request for request in requests if request.state == "queued" and request.arrival <= now]
        if not waiting and not running and not paused:
            now = min(request.arrival for request in requests if request.state == "queued")
            continue
        plan = Plan(settings, now, waiting, running, paused, over)
        for request in plan.refused:
            request.state = "gone"
        if not plan.decodes() and not plan.segments:
            if plan.refused:
                continue
            raise ValueError("nothing can run, and requests wait")
        over = over + 1 if plan.over() else 0
        last = max((requests.index(request) for request in plan.admitted), default=-1)
        for request in plan.waiting:
            request.skips += request not in plan.admitted and requests.index(request) < last
        for request in plan.paused:
            request.state, request.pauses, pauses = "paused", request.pauses + 1, pauses + 1
            running.remove(request)
            paused.append(request)
        for request in plan.resumed:
            request.state, request.since_resume = "decode", 0
            paused.remove(request)
            running.append(request)
        for request in plan.admitted:
            request.state, request.last_segment = "prefill", now
            running.append(request)
        for request in plan.decodes() + [segment.request for segment in plan.segments]:
            request.scheduled = now if request.scheduled is None else request.scheduled
        iterations += 1
        now += round(plan.ms * 1e6)
        for request in plan.decodes():
            request.decode(now, settings)
        for segment in plan.segments:
            request = segment.request
            request.layer, request.token, request.last_segment = segment.layer, segment.token, now
            if segment.last:
                request.state, request.generated = "decode", 1
                request.token_times.append(now)
        for request in [request for request in running if request.generated >= request.tokens]:
            running.remove(request)
            request.state = "gone"
    return iterations, pauses


def numbers(requests, settings):
    iterations, pauses = serve(requests, settings)
    answered = [request for request in requests if request.token_times]
    first = [(request.token_times[0] - request.arrival) / 1e6 for request in answered]
    queue = [(request.scheduled - request.arrival) / 1e6 for request in answered]
    gaps = [(b - a) / 1e6 for request in answered for a, b in zip(request.token_times, request.token_times[1:])]
    return {"iterations": iterations, "pauses": pauses, "refused": len(requests) - len(answered),
            "TTFT": sum(first) / len(first), "queue delay": sum(queue) / len(queue),
            "time between tokens": sum(gaps) / len(gaps), "its P99": percentile(gaps, 0.99)}


def check(program, seed, folder, workload, knobs, costs):
    """Simulates a drawn workload in both ways. Returns whether all numbers are the same."""
    draws = random.Random(seed)
    lines, table = folder / f"{seed}.jsonl", folder / f"{seed}.costs.json"
    count = workload(draws, lines)
    chosen, budgets = knobs(draws)
    chosen["cache"] = draws.choice(["partition", "global-lru"])
    costs = {**costs, "plan_ms": 0.05, "drift": draws.choice([0.06, 0.3]), "shape": SHAPE}
    table.write_text(json.dumps(costs), encoding="utf-8")
    device, host, scratch = draws.choice([9, 12, 22]), int(budgets[3][:-1]), int(budgets[5][:-1])
    command = [program, "simulate", "--workload", lines, "--arrivals", "recorded", "--warm-up", "0", "--warm-up-seconds",
               "0", "--counted", str(count), "--costs", table, "--device-kv", f"{device}M", "--host-kv", f"{host}M",
               "--scratch", f"{scratch}M", "--json"]
    for key, value in chosen.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"seed {seed}: {done.stderr.strip().splitlines()[-1]}")
    defaults = subprocess.run([program, "simulate", "--list-knobs", "--json"], capture_output=True, text=True, check=True)
    settings = {knob["key"]: value_of(knob["default"]) for knob in json.loads(defaults.stdout)}
    settings.update(chosen, working_set_control=chosen["working_set_control"] == "true", costs=costs,
                    device_kv_bytes=device * MIB, host_kv_bytes=host * MIB, scratch_bytes=scratch * MIB)
    settings = Settings(json.dumps(settings))
    with open(lines, encoding="utf-8") as file:
        here = numbers([Simulated(number, json.loads(line), settings) for number, line in enumerate(file)], settings)
    told = json.loads(done.stdout)["seeds"][0]["points"][0]
    there = {"iterations": told["iterations"], "pauses": told["pauses"], "refused": told["requests"]["refused"],
             "time between tokens": told["tbt_ms"]["mean"], "its P99": told["tbt_ms"]["p99_interpolated"]}
    if told["ttft_promised"]:
        there.update({"TTFT": told["ttft_ms"]["mean"], "queue delay": told["queue_ms"]["mean"]})
    differ = [f"{what}: simulate has {value}, this program {here[what]}" for what, value in there.items()
              if abs(value - here[what]) > 1e-4 * max(1, abs(here[what]))]
    print(f"seed {seed}: {here['iterations']} iterations simulated, {here['pauses']} pauses, "
          + ("; ".join(differ) if differ else "all the same"), flush=True)
    return not differ
