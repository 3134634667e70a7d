#!/usr/bin/env python3
"""The same GGUF file in KVScope and in llama.cpp: token ids, logits and speed, alternating in one run.

    python3 -m venv venv && venv/bin/pip install llama-cpp-python
    venv/bin/python bench/peer/beside_llama_cpp.py build/ci/app/kvscope-cli MODEL.gguf [--rounds 7] [--threads 2] [--ids-only]

Ids: greedy continuations of several prompts. llama.cpp rounds a layer's inputs to 8 bits where the weights are
quantised, KVScope to 16, so two close candidates may change places: the report says where the two part, and how far
apart llama.cpp's two best logits were there.
Speed: tokens/s of reading a prompt and of decoding after it, the two programs taking turns; medians and bests."""
import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nExplain in three sentences why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short story about a lighthouse.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Once upon a time there was",
    "The three primary colours are",
]


def kvscope_ids(cli: str, model: str, ids: list[int], count: int, threads: int) -> list[int]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        command = [cli, "run", "--model", model, "--prompt-ids", file.name, "--method", "full", "--max-new-tokens",
                   str(count), "--json"]
        out = subprocess.run(command, check=True, capture_output=True, text=True,
                             env=os.environ | {"KVSCOPE_THREADS": str(threads)})
    generated = json.loads(out.stdout)["generated_ids"]
    return generated[0] if generated and isinstance(generated[0], list) else generated


def llama_ids(llama, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy ids and, at each, the distance between the two best logits."""
    llama.reset()
    llama.eval(ids)
    out, gaps = [], []
    for _ in range(count):
        logits = llama.scores[llama.n_tokens - 1]
        two = numpy.argpartition(-logits, 1)[:2]
        best, second = (int(i) for i in two[numpy.argsort(-logits[two])])
        out.append(best)
        gaps.append(float(logits[best] - logits[second]))
        if best == llama.token_eos():
            break
        llama.eval([best])
    return out, gaps


def compare_ids(args, llama) -> None:
    for prompt in PROMPTS:
        ids = llama.tokenize(prompt.encode(), add_bos=False, special=True)
        theirs, gaps = llama_ids(llama, ids, args.ids)
        ours = kvscope_ids(args.cli, args.model, ids, len(theirs), args.threads)
        same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        verdict = "all equal" if same == len(theirs) else f"part at {same}, where the best two differ by {gaps[same]:.3f}"
        print(f"{prompt[:40]!r}: {same} of {len(theirs)} ids, {verdict}", flush=True)


def our_turn(args) -> dict[str, float]:
    command = [args.cli, "bench", "cpu-decode", "--json", "--set", f"model={args.model}", "--set",
               f"prompt={args.prompt}", "--set", f"steps={args.steps}", "--set", "rounds=1"]
    out = subprocess.run(command, check=True, capture_output=True, text=True,
                         env=os.environ | {"KVSCOPE_THREADS": str(args.threads)})
    measured = json.loads(out.stdout)["cpu-decode"]
    return {"prompt": measured["prompt_tokens_per_s"], "decode": measured["tokens_per_s_best"]}


def their_turn(args, llama) -> dict[str, float]:
    vocab = llama.n_vocab()
    ids = [(i + 1) * 7919 % vocab for i in range(args.prompt)]
    llama.reset()
    start = time.perf_counter()
    llama.eval(ids)
    middle = time.perf_counter()
    for i in range(args.steps):  # warm up, as the other program does
        llama.eval([ids[i % len(ids)]])
    begin = time.perf_counter()
    for i in range(args.steps):
        llama.eval([ids[i % len(ids)]])
    return {"prompt": args.prompt / (middle - start), "decode": args.steps / (time.perf_counter() - begin)}


def compare_speed(args, llama) -> dict[str, float]:
    """How many times as fast ours is, by medians."""
    ratios = {}
    ours, theirs = [], []
    for turn in range(args.rounds):
        if turn % 2 == 0:  # who goes first changes, so that a machine growing slower favours nobody
            ours.append(our_turn(args))
            theirs.append(their_turn(args, llama))
        else:
            theirs.append(their_turn(args, llama))
            ours.append(our_turn(args))
        print(f"turn {turn}: " + ", ".join(f"{what} {ours[-1][what]:.0f} against {theirs[-1][what]:.0f} tokens/s"
                                           for what in ours[-1]), flush=True)
    for what in ("prompt", "decode"):
        a, b = [turn[what] for turn in ours], [turn[what] for turn in theirs]
        each = [x / y for x, y in zip(a, b)]
        ratios[what] = statistics.median(a) / statistics.median(b)
        print(f"{what}: median {statistics.median(a):.1f} against {statistics.median(b):.1f} tokens/s "
              f"({statistics.median(a) / statistics.median(b):.2f}x), best {max(a):.1f} against {max(b):.1f} "
              f"({max(a) / max(b):.2f}x), turns {min(each):.2f}x to {max(each):.2f}x; {args.prompt} tokens of prompt, "
              f"{args.threads} threads")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cli")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--ids", type=int, default=64)
    parser.add_argument("--ids-only", action="store_true")
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the ratios of the speeds as the last line")
    args = parser.parse_args()
    import llama_cpp
    context = args.prompt + 2 * args.steps + args.ids + 64
    make = lambda all_logits: llama_cpp.Llama(args.model, n_ctx=context, n_threads=args.threads,
                                              n_threads_batch=args.threads, n_batch=512, logits_all=all_logits,
                                              verbose=False)
    print(f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}")
    if not args.speed_only:
        compare_ids(args, make(True))
    if not args.ids_only:
        ratios = compare_speed(args, make(False))
        if args.json:
            print(json.dumps(ratios))


if __name__ == "__main__":
    sys.exit(main())
