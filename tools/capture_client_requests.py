#!/usr/bin/env python3
"""Captures, byte by byte, what real clients send to a server of this build, and compares what they measured with the trace.
Both clients need Python 3.11 or later and a virtual environment outside this folder:
   python3 -m venv V && V/bin/pip install aiperf regex tqdm && V/bin/pip download --no-deps --only-binary=:all: -d W vllm
   V/bin/python tools/capture_client_requests.py build/ci/app/kvscope-cli --vllm W/vllm-*.whl -o tests/golden/clients
vLLM itself takes several GB (torch). Its benchmark's client is one file of the wheel that needs none of it: the functions
that `vllm bench serve` calls for its requests are loaded from there. AIPerf runs as its users run it.
tests/app/client_requests_test.cpp replays what lies in the folder."""
import argparse
import ast
import asyncio
import json
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import types
import zipfile

from chatty_server import start

OUTPUT_TOKENS = 12
KEPT_OF_A_KIND = 2  # requests of one client with one method and path


class Recorder:
    """Passes connections on to the server, and keeps what the clients send."""

    def __init__(self, port):
        self.server_port = port
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(("127.0.0.1", self.server_port))
            threading.Thread(target=self.forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self.back, args=(server, client), daemon=True).start()

    def forward(self, client, server):
        held = b""
        try:
            while piece := client.recv(65536):
                server.sendall(piece)
                held = self.take(held + piece)
        except OSError:
            pass
        server.close()

    @staticmethod
    def back(server, client):
        try:
            while piece := server.recv(65536):
                client.sendall(piece)
        except OSError:
            pass
        try:
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def take(self, held):
        """Moves the whole requests at the beginning of the bytes into the list. Returns the rest."""
        while (end := held.find(b"\r\n\r\n")) >= 0:
            length = 0
            for line in held[:end].split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.strip().lower() == b"content-length":
                    length = int(value)
                assert name.strip().lower() != b"transfer-encoding", "a client sends a chunked body"
            if len(held) < end + 4 + length:
                return held
            self.requests.append(held[: end + 4 + length])
            held = held[end + 4 + length:]
        return held

    def taken(self):
        requests, self.requests = self.requests, []
        return requests


def function_of(source, name, scope):
    """The function of a file whose other parts need packages that are not here."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef)) and node.name == name:
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
            exec(compile(ast.Module([node], []), name, "exec"), scope)
            return scope[name]
    raise SystemExit(f"vllm's serve.py has no function {name}: this script knows vllm 0.33")


async def ask_with_vllm(wheel, port):
    """Asks as `vllm bench serve` does: the models, then a completion and a chat."""
    import aiohttp

    with zipfile.ZipFile(wheel) as archive:
        client = archive.read("vllm/benchmarks/lib/endpoint_request_func.py").decode()
        serve = archive.read("vllm/benchmarks/serve.py").decode()
    module = types.ModuleType("vllm_client")
    sys.modules[module.__name__] = module  # its dataclasses look there
    exec(compile(client, "endpoint_request_func.py", "exec"), module.__dict__)
    first_model = function_of(serve, "get_first_model_from_server", {"aiohttp": aiohttp, "json": json, "os": os})
    base = f"http://127.0.0.1:{port}"
    name, root = await first_model(base)
    assert name == "chatty" and root, (name, root)
    results = []
    # as benchmark() of serve.py makes its session
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=300, use_dns_cache=True, keepalive_timeout=60,
                                     enable_cleanup_closed=True, force_close=False)
    async with aiohttp.ClientSession(connector=connector, trust_env=True, timeout=aiohttp.ClientTimeout(total=600)) as session:
        for path, function in (("/v1/completions", module.async_request_openai_completions),
                               ("/v1/chat/completions", module.async_request_openai_chat_completions)):
            output = await function(module.RequestFuncInput(
                model=name, model_name=None, prompt="Once upon a time there was a river", api_url=base + path, prompt_len=9,
                output_len=OUTPUT_TOKENS, ignore_eos=True, extra_body={"temperature": 0.0}), session)
            assert output.success, output.error
            assert output.output_tokens == OUTPUT_TOKENS and len(output.itl) == OUTPUT_TOKENS - 1, output
            results.append(output)
    return results


def ask_with_aiperf(command, port, model, kind, folder):
    """Runs AIPerf on one endpoint. Returns its results."""
    out = folder / f"aiperf-{kind}"
    done = subprocess.run([command, "profile", "--model", "chatty", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", kind,
                           "--streaming", "--tokenizer", model, "--request-count", "10", "--concurrency", "2",
                           "--synthetic-input-tokens-mean", "60", "--synthetic-input-tokens-stddev", "0",
                           "--output-tokens-mean", str(OUTPUT_TOKENS), "--output-tokens-stddev", "0",
                           "--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--random-seed", "1",
                           "--ui-type", "none", "--artifact-dir", out], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((out / "profile_export_aiperf.json").read_text())


def ended(server):
    server.terminate()
    status = server.wait()
    assert status == 0, f"the server ended with {status}"


def store(folder, client, requests):
    """Keeps the first requests of each kind under names that say whose they are."""
    counts = {}
    for request in requests:
        method, path, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
        kind = f"{method.lower()}{path.replace('/v1', '').replace('/', '-')}"
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= KEPT_OF_A_KIND:
            (folder / f"{client}-{kind}-{counts[kind]}.http").write_bytes(request)
    print(f"{client}: {len(requests)} requests, {counts}")


def number_of_last(trace, count):
    """The number of the request that came as the count-th; -1: count is 0."""
    with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as rows:
        numbers = rows.execute("SELECT request FROM v_request ORDER BY request LIMIT ?", (count,)).fetchall()
    return numbers[-1][0] if numbers else -1


def compare(trace, kind, results, after):
    """Holds AIPerf's numbers to the next ten requests of the trace. Returns the number of the last of them."""
    with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as rows:
        served = rows.execute("SELECT request, (first_token_ns - arrival_ns) / 1e6, output_tokens FROM v_request"
                              " WHERE request > ? ORDER BY request LIMIT 10", (after,)).fetchall()
    ttft, tokens = sum(row[1] for row in served) / len(served), sum(row[2] for row in served)
    theirs = results["time_to_first_token"]["avg"]
    print(f"aiperf, {kind}: {len(served)} requests, {tokens} tokens, mean TTFT {theirs:.2f} ms by the client, {ttft:.2f} ms "
          f"by the trace")
    assert len(served) == 10 and tokens == 10 * OUTPUT_TOKENS, "the client sent other requests than it was asked to"
    assert results["output_sequence_length"]["avg"] == OUTPUT_TOKENS, "the client counts other tokens"
    # Both come from one machine, where the client, this script and the server share the cores: said, not asserted.
    print(f"   {theirs - ttft:+.2f} ms, {'within' if abs(theirs - ttft) <= max(0.01 * ttft, 1) else 'beyond'} 1 % or 1 ms")
    return served[-1][0]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program", help="kvscope-cli")
    arguments.add_argument("--vllm", metavar="WHEEL", help="vllm's wheel, as pip downloads it")
    arguments.add_argument("--aiperf", metavar="PROGRAM", default=str(pathlib.Path(sys.executable).parent / "aiperf"))
    arguments.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder for the captured requests")
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server, address, model = start(pathlib.Path(given.program).resolve(), folder, "--benchmark", "--trace",
                                       folder / "served.kvtrace")
        recorder = Recorder(int(address.rsplit(":", 1)[1]))
        measured = {}
        try:
            before = 0
            if given.vllm:
                asyncio.run(ask_with_vllm(given.vllm, recorder.port))
                time.sleep(0.2)
                store(given.out, "vllm", recorder.taken())
                before = 2
            for kind in ("chat", "completions"):
                measured[kind] = ask_with_aiperf(given.aiperf, recorder.port, model, kind, folder)
            store(given.out, "aiperf", recorder.taken())
        finally:
            ended(server)
        after = number_of_last(folder / "served.kvtrace", before)
        for kind, results in measured.items():
            after = compare(folder / "served.kvtrace", kind, results, after)


if __name__ == "__main__":
    main()
