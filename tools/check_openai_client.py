#!/usr/bin/env python3
"""Asks a server of this build through the `openai` package (tools/openai_client.txt):
   tools/check_openai_client.py build/ci/app/kvscope-cli
Starts the server with the embedded model and a chat template of its own, and ends it. ./test runs it."""
import pathlib
import sys
import tempfile

import openai

from chatty_server import start


def expect(error, call):
    try:
        call()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def check(client):
    assert [m.id for m in client.models.list()] == ["chatty"]
    assert client.models.retrieve("chatty").id == "chatty"
    expect(openai.NotFoundError, lambda: client.models.retrieve("other/model"))
    asked = dict(model="chatty", prompt="Once upon a time", max_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert len(parts) == 13 and parts[-1].choices == [] and parts[-1].usage == whole.usage
    assert "".join(p.choices[0].text for p in parts[:-1]) == whole.choices[0].text

    asked = dict(model="chatty", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
                 max_completion_tokens=9, temperature=0.8, seed=5, extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens == 9
    parts = list(client.chat.completions.create(**asked, stream=True))
    assert len(parts) == 9 and parts[0].choices[0].delta.role == "assistant"
    assert "".join(p.choices[0].delta.content for p in parts) == whole.choices[0].message.content
    assert [p.choices[0].finish_reason for p in parts] == [None] * 8 + ["length"]

    with client.chat.completions.create(**{**asked, "max_completion_tokens": 3000}, stream=True) as stream:
        next(iter(stream))
        name = stream.response.headers["x-request-id"]
    for _ in range(200):  # leaving the stream closes the connection, which cancels the request
        state = client.get(f"/requests/{name}", cast_to=object)
        if state["state"] == "cancelled":
            break
    assert state["cancelled_by"] == "disconnect" and state["output_tokens"] < 3000, state

    expect(openai.NotFoundError, lambda: client.completions.create(model="gpt-4", prompt="a"))
    expect(openai.NotFoundError, lambda: client.responses.create(model="chatty", input="a"))
    refused = expect(openai.BadRequestError, lambda: client.completions.create(model="chatty", prompt="a", logprobs=1))
    assert refused.param == "logprobs", refused


def main():
    with tempfile.TemporaryDirectory() as name:
        server, address, _ = start(sys.argv[1], pathlib.Path(name))
        try:
            check(openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0))
        finally:
            server.terminate()
            status = server.wait()
        assert status == 0, f"the server ended with {status}"
    print(f"openai {openai.__version__}: well")


if __name__ == "__main__":
    main()
