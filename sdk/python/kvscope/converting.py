"""Index arrays that servers return with a reply, as traces.

SGLang (--enable-return-indexer-topk, request field return_indexer_topk) and vLLM (an open pull request) give the tokens that every query
of a sequence selected, in each indexer layer: int32 [queries, indexer layers, topk], positions from 0, -1 where fewer. SGLang gives positions with
SGLANG_DSA_FUSE_TOPK=0.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ._arrays import as_array
from .writing import Recorder

TOKEN_BYTES = 656
"""Bytes of a token in the latent cache of DeepSeek-V3.2 as servers keep it: 512 FP8 numbers, 16 of scales, 64 rotated bf16 numbers."""


def from_indexer_topk(arrays: Any, path: str | os.PathLike[str], *, prompt_tokens: int | Sequence[int],
                      tokens: Sequence[Sequence[int]] | None = None, first_position: int = 0, block_size: int = 64,
                      layers: int | None = None, layer_numbers: Sequence[int] | None = None, token_bytes: int = TOKEN_BYTES,
                      method: str = "dsa", model: str = "", name: str | None = None, engine: str = "sglang", overwrite: bool = True,
                      meta: Mapping[str, str] | None = None) -> None:  # fmt: skip
    """Writes the selections of decode steps into a trace: one run, whose sequences are the arrays.

    arrays: one array [queries, indexer layers, topk] of integers, or a list of them, one a sequence. numpy arrays or torch tensors on the
        CPU. Query i stands at position first_position + i.
    prompt_tokens: of the sequence (or of each). The query at the prompt's last position gives the first generated token and belongs
        to the prefill; those after it are steps 1, 2, ...
    tokens: all token ids of each sequence, prompt first; None records none.
    layers, layer_numbers: layers of the model, and which of them each indexer layer of the array is; None: they are the model's.
    token_bytes: of a token in the cache, keys and values. The trace knows nothing of hits, transfers and times.
    Raises ValueError for arrays of another shape, for numbers that are no positions, and where no query stands behind its prompt; a file
        at path stays as it was then.

    >>> import kvscope, numpy
    >>> array = numpy.array([[[0, -1]], [[1, 0]], [[2, 1]], [[3, 0]]])  # 4 queries, 1 indexer layer, topk 2
    >>> kvscope.from_indexer_topk(array, "reply.kvtrace", prompt_tokens=3, block_size=1)
    >>> kvscope.open("reply.kvtrace").columns("selections")["blocks"]  # of the one decode step
    [[0, 3]]
    """
    sequences = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
    prompts = [prompt_tokens] * len(sequences) if isinstance(prompt_tokens, int) else list(prompt_tokens)
    shapes = [as_array(array, ("int32", "int64"), "an index array").shape for array in sequences]
    if not sequences or any(len(shape) != 3 for shape in shapes) or len({shape[1] for shape in shapes}) != 1:
        raise ValueError(f"index arrays have shapes {shapes}; give [queries, indexer layers, topk], with equally many layers in all")
    if len(prompts) != len(sequences) or (tokens is not None and len(tokens) != len(sequences)):
        raise ValueError(f"there are {len(sequences)} arrays; give prompt_tokens, and tokens if any, of as many sequences")
    for array, shape in zip(sequences, shapes):
        _refuse_places(array, shape, first_position)
    numbers = list(layer_numbers) if layer_numbers is not None else list(range(shapes[0][1]))
    if len(numbers) != shapes[0][1]:
        raise ValueError(f"there are {len(numbers)} layer_numbers for {shapes[0][1]} indexer layers")
    count = layers if layers is not None else max(numbers) + 1
    steps = max(first_position + shape[0] - prompt for shape, prompt in zip(shapes, prompts))
    if steps <= 0:
        last = first_position + max(shape[0] for shape in shapes) - 1
        raise ValueError(
            f"all queries stand inside the prompt (the last at position {last}, prompt_tokens is {', '.join(map(str, prompts))}), and only those "
            "behind it are recorded; generate two tokens or more, or give a smaller prompt_tokens to record queries as decode steps"
        )
    with Recorder(path, overwrite=overwrite) as recorder:
        with recorder.run(
            method=method, model=model, name=name, block_size=block_size, layers=count, sequences=len(sequences), knows=("selections",),
            block_bytes=token_bytes * block_size, prompts=[ids[:prompt] for ids, prompt in zip(tokens, prompts)] if tokens else None,
            meta={"engine": engine, "unit": "token", **(meta or {})},
        ) as run:  # fmt: skip
            for index in range(steps + 1):
                with run.step("prefill" if index == 0 else "decode", sum(prompts) if index == 0 else len(sequences)) as step:
                    for row, (array, shape, prompt) in enumerate(zip(sequences, shapes, prompts)):
                        position = prompt - 1 + index
                        at = position - first_position
                        if index > 0 and 0 <= at < shape[0]:
                            for i, layer in enumerate(numbers):
                                step.select(layer, array[at][i], position=[position], seq=[row], unit="token")
                        if tokens is not None and position + 1 < len(tokens[row]):
                            step.tokens(row, position + 1, [int(tokens[row][position + 1])])


def _refuse_places(array: Any, shape: tuple[int, ...], first_position: int) -> None:
    """Raises ValueError where a query that had topk tokens to choose from is said to have chosen later ones."""
    if not hasattr(array, "max"):
        return
    for query in range(max(shape[2] - 1 - first_position, 0), shape[0] if shape[1] * shape[2] else 0):
        position, last = first_position + query, int(array[query].max())
        if last > position:
            raise ValueError(
                f"the query at position {position} selects token {last}, which comes later: these are not positions. SGLang gives places in its "
                "KV pool where top-k kernels are fused; start it with SGLANG_DSA_FUSE_TOPK=0"
            )


def index_array(encoded: str, *, queries: int | None = None, layers: int | None = None, topk: int | None = None) -> Any:
    """The array [queries, indexer layers, topk] of a reply's base64 text, as a numpy array.

    vLLM's text is a .npy file and knows its shape; SGLang's are bare int32 numbers, whose shape follows from two of the three sizes.
    """
    import numpy

    data = base64.b64decode(encoded)
    if data.startswith(b"\x93NUMPY"):
        return numpy.load(io.BytesIO(data), allow_pickle=False)
    flat = numpy.frombuffer(data, dtype=numpy.int32)
    sizes = [size if size else -1 for size in (queries, layers, topk)]
    if sizes.count(-1) > 1:
        raise ValueError("the reply has bare numbers; give two of queries (tokens - 1), layers and topk (index_topk of the model)")
    try:
        return flat.reshape(sizes)
    except ValueError as error:
        raise ValueError(f"{flat.size} numbers are not an array of {queries} queries, {layers} layers and topk {topk}") from error


def from_reply(reply: Mapping[str, Any], path: str | os.PathLike[str], *, topk: int | None = None, indexer_layers: int | None = None,
               prompt_tokens: int | None = None, **options: Any) -> None:  # fmt: skip
    """Writes a server's reply as a trace: SGLang's /generate (meta_info.indexer_topk) or vLLM's completion (choices[0].indexer_topk).

    topk: index_topk of the model, which SGLang's reply does not say. indexer_layers: of the array, where that is known rather than topk.
    prompt_tokens: where the reply does not say it. options: of from_indexer_topk. Raises ValueError if the reply has no indices.
    """
    if "choices" in reply:
        engine, encoded = "vllm", reply["choices"][0].get("indexer_topk")
        usage, queries = reply.get("usage") or {}, None
    else:
        engine, usage = "sglang", reply.get("meta_info") or {}
        encoded = usage.get("indexer_topk")
        total = (usage.get("prompt_tokens") or 0) + (usage.get("completion_tokens") or 0)
        queries = total - 1 if total else None
    if encoded is None:
        raise ValueError(
            "the reply has no indexer_topk; start SGLang with --enable-return-indexer-topk and ask with return_indexer_topk, "
            "or vLLM with --enable-return-indexer-topk"
        )
    prompt = prompt_tokens if prompt_tokens is not None else usage.get("prompt_tokens")
    if prompt is None:
        raise ValueError("the reply does not say how long its prompt is; give prompt_tokens")
    array = index_array(encoded, queries=queries, layers=indexer_layers, topk=topk)
    from_indexer_topk(array, path, prompt_tokens=int(prompt), **{"engine": engine, **options})


def convert(source: str | os.PathLike[str], path: str | os.PathLike[str], **options: Any) -> None:
    """As from_reply, of a JSON file. Raises ValueError for a file that is none."""
    with open(source, encoding="utf-8") as file:
        try:
            reply = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(source)} is not JSON: {error}") from error
    if not isinstance(reply, dict):
        raise ValueError(f"{os.fspath(source)} holds no object; give one reply of a server")
    from_reply(reply, path, **options)
