"""What recording costs: the same generation with and without it, measured in turn, and kept in the trace.

    result = kvscope.measure_overhead("run.kvtrace", model, lambda: model.generate(**inputs, max_new_tokens=64, do_sample=False))
    print(result)                                  # 1.3 % of 6.42 ms a step, tokens equal
    kvscope.open("run.kvtrace").overhead           # the same, for whoever gets the trace
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .reading import read
from .writing import record

KEY = "recording_overhead"
"""Key of run_meta."""


@dataclasses.dataclass(frozen=True)
class Overhead:
    """The fastest of `repeats` generations of each kind, which took turns: other programs only make one slower.

    Times are wall time, or processor time of the thread that decodes.
    """

    plain_ms: float  # of a step, without recording
    recorded_ms: float
    plain_cpu_ms: float
    recorded_cpu_ms: float
    steps: int  # of one generation, the prefill included
    repeats: int
    tokens_equal: bool

    @property
    def share(self) -> float:
        """Of a step's wall time that recording adds: 0.01 is 1 %. Noise may make it negative."""
        return self.recorded_ms / self.plain_ms - 1

    @property
    def cpu_share(self) -> float:
        """As share, of processor time."""
        return self.recorded_cpu_ms / self.plain_cpu_ms - 1

    def __str__(self) -> str:
        tokens = "equal" if self.tokens_equal else "NOT equal"
        return f"{self.share:.1%} of {self.plain_ms:.2f} ms a step ({self.cpu_share:.1%} of processor time), tokens {tokens}"


def measure_overhead(path: str | os.PathLike[str], model: Any, generate: Callable[[], Any], *, repeats: int = 5, **options: Any) -> Overhead:
    """Measures what recording adds to `generate`, then records it once more into `path`, with the result in key KEY of run_meta.

    generate: calls model.generate() once, always with the same result: greedy, or with a seed that it sets itself. repeats: generations of
    each kind, after one of each that is not measured. options: those of kvscope.record for this model.
    Raises ValueError if nothing was recorded.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; give at least 1")
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.kvtrace"

        def once(recorded: bool) -> tuple[float, float]:
            wall, processor = time.perf_counter(), time.thread_time()
            results.append(_tokens(generate()))
            return (time.perf_counter() - wall) * 1e3, (time.thread_time() - processor) * 1e3

        for turn in range(repeats + 1):
            for recorded in (False, True):
                if recorded:
                    with record(trace, model, **options):  # opening and closing the file is not of a step
                        took = once(recorded)
                else:
                    took = once(recorded)
                if turn > 0:
                    times[recorded].append(took)
        steps = sum(number for number in read(trace, "runs")["steps"][1] if number)
    if steps == 0:
        raise ValueError("nothing was recorded; generate has to call the generate of this model")
    plain, recorded_times = ([min(column) / steps for column in zip(*times[kind])] for kind in (False, True))
    result = Overhead(plain[0], recorded_times[0], plain[1], recorded_times[1], steps, repeats, all(one == results[0] for one in results))
    meta = {**(options.pop("meta", None) or {}), KEY: json.dumps(dataclasses.asdict(result))}
    with record(path, model, meta=meta, **options):
        generate()
    return result


def overhead_of(path: str | os.PathLike[str], run: int = 0) -> Overhead | None:
    """What measure_overhead wrote into the trace; None if it wrote nothing."""
    meta = read(path, "meta", run)
    for key, value in zip(meta["key"][1], meta["value"][1]):
        if key == KEY:
            return Overhead(**json.loads(value))
    return None


def _tokens(result: Any) -> Any:
    """Tokens of a result as nested lists, where it has any."""
    result = getattr(result, "sequences", result)
    return result.tolist() if hasattr(result, "tolist") else result
