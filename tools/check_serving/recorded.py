"""What a trace of a served run says: settings, requests, iterations, and the blocks that rows selected."""

import collections
import json
import sqlite3


class Request:
    """A request of the trace, with what it has reserved and how far it is."""

    def __init__(self, row, settings):
        self.id, self.arrival, self.end, self.status = row["request"], row["arrival_ns"], row["end_ns"], row["status"]
        self.prompt, self.tokens = row["prompt_tokens"], row["max_tokens"]
        self.ttft_bound_ms = row["slo_ttft_ms"] or settings.knobs["ttft_bound_ms"]
        self.host, self.device, self.scratch, self.hard, self.working_set = settings.needs(self.prompt, self.tokens)
        self.told_host, self.told_device = row["host_bytes"], row["device_bytes"]
        if not settings.index_by_blocks and self.told_device:
            self.device = self.told_device
        self.had_row = row["row"] is not None
        self.state = "queued"  # prefill, decode, paused, gone
        self.layer = self.token = 0  # where its prompt goes on
        self.generated = self.skips = self.pauses = self.since_resume = 0
        self.last_segment = 0  # ns
        self.steps = {}  # (layer, head): the sets that its last w steps selected


class Settings:
    """Knobs, budgets, costs and sizes of the run. Numbers are bytes, milliseconds and tokens."""

    def __init__(self, text, method="quest"):
        self.knobs = json.loads(text)
        self.costs = self.knobs["costs"]
        shape = self.costs["shape"]
        self.layers, self.heads, self.hidden = shape["layers"], shape["kv_heads"], shape["hidden"]
        self.block_tokens, self.block_bytes = shape["block_tokens"], shape["block_bytes"]
        self.selected, self.piece = shape["selected_blocks"], shape["piece_tokens"]
        self.index_bytes, self.run_blocks = shape["index_bytes_per_token"], shape["host_run_blocks"]
        self.cuts_layers = shape["pauses_in_layer"]
        self.offload, self.control = self.knobs["offload"], self.knobs["working_set_control"]
        self.pooled = self.knobs["cache"] == "global-lru"
        self.chunks = self.knobs["prefill"] == "chunks"
        self.device, self.host = self.knobs["device_kv_bytes"], self.knobs["host_kv_bytes"]
        self.scratch, self.rows = self.knobs["scratch_bytes"], self.knobs["rows"]
        self.window = self.knobs["window"]
        self.index_by_blocks = method == "quest"  # only the engine knows the index sizes of other methods
        if shape["resident_layers"]:
            raise ValueError("layers that stay on the device are not checked")

    def layer_token_bytes(self):
        return self.heads * (self.block_bytes // self.block_tokens)

    def partition(self, blocks):
        wanted = max(self.knobs["partition_blocks"] or 2 * self.selected, self.selected)
        return min(wanted, blocks)  # a short request has no more slots than blocks

    def needs(self, prompt, tokens):
        """host, device (index and newest blocks), scratch, hard need and the first working set of a request."""
        blocks = -(-(prompt + tokens) // self.block_tokens)
        every_head = self.layers * self.heads * self.block_bytes
        index = blocks * self.block_tokens * self.index_bytes
        if not self.offload:
            host, device, hard, first = 0, index + blocks * every_head, 0, 0
        else:
            host = -(-blocks // self.run_blocks) * self.run_blocks * every_head
            device = index + every_head
            step = min(self.selected, blocks)
            hard = step * self.heads * self.block_bytes
            first = (step if self.pooled else self.partition(blocks)) * every_head
            if not self.pooled and not self.control:
                hard = first
        if self.chunks:
            return host, device, min(self.knobs["chunk_tokens"], prompt) * self.hidden * 4, hard, first
        wide = {"device": 4, "device-bf16": 2, "host": 0}[self.knobs["parking"]]
        scratch = (prompt * wide if wide else min(self.piece, prompt) * 4) * self.hidden
        if self.offload:
            scratch += 2 * prompt * self.layer_token_bytes()
        return host, device, scratch, hard, first

    def budget_ms(self):
        longest = 0.8 * self.knobs["tbt_bound_ms"]
        return min(self.knobs["iteration_ms"] or longest, longest)

    def decode_ms(self, rows, context):
        if rows == 0:
            return 0.0
        points = self.costs["decode_ms"]
        if rows <= points[0][0] or len(points) == 1:
            ms = points[0][1]
        else:
            at = next((i for i, point in enumerate(points) if rows <= point[0]), len(points) - 1)
            (a, low), (b, high) = points[at - 1], points[at]
            ms = low + (rows - a) * (high - low) / (b - a)
        return ms + self.costs.get("decode_us_per_ktoken", 0) * context / 1e6

    def overhead_ms(self, rows):
        return self.costs.get("plan_ms", 0) + self.costs.get("gap_ms", 0) + self.costs.get("gap_us_per_row", 0) * rows / 1e3

    def admission_ms(self, prompt):
        return self.costs.get("admit_ms", 0) + self.costs.get("admit_us_per_token", 0) * prompt / 1e3

    def layer_ms(self, begin, end):
        """Reading the tokens [begin, end) of a prompt in one layer."""
        costs = self.costs
        return (costs["prefill_us_per_token"] * (end - begin) / 1e3
                + costs["prefill_ps_per_token2"] * (end * end - begin * begin) / 1e9)

    def checks_predictions(self):
        """Whether predicted times can be checked: not where they depend on an assumed share of hits, which no trace holds."""
        transfers = self.knobs["transfers"]
        return not self.offload or (self.costs["link_gbps"][transfers] is None
                                    and not self.costs.get("offload_ms", {}).get(transfers)
                                    and not self.costs.get("offload_us_per_row", {}).get(transfers))


class Recorded:
    """One served run of a trace."""

    def __init__(self, path, run):
        base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        base.row_factory = sqlite3.Row
        told = base.execute("SELECT value FROM run_meta WHERE run_id = ? AND key = 'serving'", (run,)).fetchone()
        if told is None:
            raise ValueError(f"run {run} of {path} served no requests")
        method, backend = base.execute("SELECT method, backend FROM runs WHERE run_id = ?", (run,)).fetchone()
        self.settings = Settings(told[0], method)
        if backend != "cpu":
            raise ValueError(f"run {run} of {path} was served by a GPU, whose driver decides what rows take")
        self.requests = {row["request"]: Request(row, self.settings) for row in base.execute(
            "SELECT * FROM v_request WHERE run_id = ? ORDER BY arrival_ns, request", (run,))}
        self.iterations = base.execute("SELECT * FROM v_iteration WHERE run_id = ? ORDER BY iteration",
                                       (run,)).fetchall()
        self.members = collections.defaultdict(list)
        for row in base.execute("SELECT * FROM v_member WHERE run_id = ?", (run,)):
            self.members[row["iteration"]].append(row)
        self.events = collections.defaultdict(list)  # (iteration, kind): requests in their order
        for row in base.execute("SELECT * FROM v_row_event WHERE run_id = ? ORDER BY event", (run,)):
            self.events[row["iteration"], row["kind"]].append(row["request"])
        self.selections = collections.defaultdict(list)  # [iteration] (layer, row, head, ids), in their order
        for row in base.execute("SELECT id, blocks FROM selection WHERE id BETWEEN ? << 55 AND (? << 55) | ? AND"
                                " blocks IS NOT NULL ORDER BY id", (run, run, (1 << 55) - 1)):
            key = row["id"]
            self.selections[key >> 30 & 0x1FFFFFF].append((key >> 20 & 0x3FF, key >> 10 & 0x3FF, key & 0x3FF,
                                                           blocks_of(row["blocks"])))
        base.close()


def runs_of(path):
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    runs = [row[0] for row in base.execute("SELECT run_id FROM run_meta WHERE key = 'serving' ORDER BY run_id")]
    base.close()
    return runs


def blocks_of(blob):
    """The ids of a selection blob (docs/trace-format.md)."""

    def varint(at):
        value = shift = 0
        while True:
            byte = blob[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value, at

    count, at = varint(1)
    if blob[0] & 1:
        base, at = varint(at)
        length, at = varint(at)
        return [base + 8 * i + bit for i in range(length) for bit in range(8) if blob[at + i] >> bit & 1]
    ids, last = [], -1
    for _ in range(count):
        gap, at = varint(at)
        last += gap + 1
        ids.append(last)
    return ids
