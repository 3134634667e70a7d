"""Packages with the seams of SGLang and vLLM that kvscope.serving looks for: names, signatures, shapes, and the order of calls."""

from __future__ import annotations

from pathlib import Path

SGLANG = {
    "__init__.py": '__version__ = "0.9.stub"\n',
    "srt/__init__.py": "",
    "srt/plugins/__init__.py": """
from importlib.metadata import entry_points

from .hook_registry import HookRegistry


def load_plugins():
    for plugin in entry_points(group="sglang.srt.plugins"):
        plugin.load()()
    HookRegistry.apply_hooks()
""",
    "srt/plugins/hook_registry.py": """
import enum
import importlib


class HookType(enum.Enum):
    AROUND = "around"
    AFTER = "after"


class HookRegistry:
    hooks = []

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls):
        for target, hook, hook_type in cls.hooks:
            assert hook_type is HookType.AROUND
            place, name = target.rsplit(".", 1)
            module = importlib.import_module(place)
            original = getattr(module, name)
            setattr(module, name, lambda *args, original=original, hook=hook, **kwargs: hook(original, *args, **kwargs))
""",
    "srt/environ.py": """
class Field:
    def __init__(self, value):
        self.value = value

    def get(self):
        return self.value


class Envs:
    SGLANG_DSA_FUSE_TOPK = Field(False)  # on unless the variable says 0


envs = Envs()
""",
    "srt/state_capturer/__init__.py": "",
    "srt/state_capturer/base.py": """
class BaseTopkCapturer:
    def __init__(self):
        self.captured, self.ended = 0, 0

    def capture(self, layer_id, topk_indices):
        self.captured += 1

    def on_forward_end(self, forward_batch, can_run_graph, cuda_graph_batch, no_copy_to_cpu=False):
        self.ended += 1
        return "the engine's own"

    def get_topk(self, req_pool_idx, seqlen, req_to_token_pool, start_len=0):
        return req_pool_idx

    def destroy(self):
        pass
""",
    "srt/state_capturer/indexer_topk.py": """
from .base import BaseTopkCapturer

ENABLED = False
_capturer = None


def set_global_indexer_capturer(capturer):
    global _capturer
    _capturer = capturer


def get_global_indexer_capturer():
    return _capturer


def maybe_capture_indexer_topk(layer_id, topk_indices):
    if _capturer is not None:
        _capturer.capture(layer_id=layer_id, topk_indices=topk_indices)
    return topk_indices


def collect(req_pool_idx):  # as the scheduler does with every request that ends
    if _capturer is not None:
        return _capturer.get_topk(req_pool_idx=req_pool_idx, seqlen=5, req_to_token_pool=None)


def create_indexer_capturer(*, model_config, num_tokens, max_running_requests, device):
    return BaseTopkCapturer() if ENABLED else None
""",
}

VLLM = {
    "__init__.py": '__version__ = "0.99.stub"\n',
    "plugins.py": """
from importlib.metadata import entry_points


def load_general_plugins():
    for plugin in entry_points(group="vllm.general_plugins"):
        plugin.load()()
""",
    "utils/__init__.py": "",
    "utils/torch_utils.py": """
OPS = {}


class LayerName:
    def __init__(self, value):
        self.value = value


def direct_register_custom_op(op_name, op_func, mutates_args=None, fake_impl=None):
    OPS[op_name] = op_func
""",
    "model_executor/__init__.py": "",
    "model_executor/layers/__init__.py": "",
    "model_executor/layers/sparse_attn_indexer.py": """
import functools

from vllm.utils.torch_utils import direct_register_custom_op


def eager_break_during_capture(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@eager_break_during_capture
def sparse_attn_indexer(hidden_states, k_cache_prefix, chosen, topk_indices_buffer):
    topk_indices_buffer[: hidden_states.shape[0]] = -1
    topk_indices_buffer[: chosen.shape[0], : chosen.shape[1]] = chosen
    return topk_indices_buffer


direct_register_custom_op(op_name="sparse_attn_indexer", op_func=sparse_attn_indexer, mutates_args=["topk_indices_buffer"])
""",
    "models.py": """
import torch

from vllm.model_executor.layers.sparse_attn_indexer import sparse_attn_indexer
from vllm.utils.torch_utils import OPS, LayerName

OWN = False  # the model calls the function, not the op


def forward(buffer, rows, chosen):
    indexer = sparse_attn_indexer if OWN else OPS["sparse_attn_indexer"]
    for layer, ids in enumerate(chosen):
        indexer(torch.zeros(rows, 4), LayerName(f"model.layers.{layer}.self_attn.indexer.k_cache"), ids, topk_indices_buffer=buffer)
""",
    "v1/__init__.py": "",
    "v1/worker/__init__.py": "",
    "v1/worker/gpu_model_runner.py": """
import types

import torch


class GPUModelRunner:
    def __init__(self, layers, requests, max_model_len, topk):
        text = types.SimpleNamespace(num_hidden_layers=layers)
        self.model_config = types.SimpleNamespace(hf_text_config=text, max_model_len=max_model_len, model="tiny")
        self.max_num_reqs = requests
        self.speculative_config = None
        self.buffer = torch.full((64, topk), -1, dtype=torch.int32)  # one for all layers
        self.input_batch = types.SimpleNamespace(req_ids=[], num_computed_tokens_cpu=[], num_prompt_tokens=[])

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        from vllm.models import forward

        self.input_batch = scheduler_output.batch
        forward(self.buffer, sum(scheduler_output.num_scheduled_tokens.values()) + scheduler_output.padding, scheduler_output.chosen)
        return "output"
""",
    "v1/worker/gpu/__init__.py": "",
    "v1/worker/gpu/model_runner.py": """
import types

import numpy
import torch


class GPUModelRunner:
    def __init__(self, layers, requests, max_model_len, topk):
        text = types.SimpleNamespace(num_hidden_layers=layers)
        self.model_config = types.SimpleNamespace(hf_text_config=text, max_model_len=max_model_len, model="tiny")
        self.max_num_reqs = requests
        self.speculative_config = None
        self.buffer = torch.full((64, topk), -1, dtype=torch.int32)  # one for all layers
        self.execute_model_state = None

    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False, skip_attn_for_dummy_run=False):
        from vllm.models import forward

        if not scheduler_output.num_scheduled_tokens:
            return "no output"
        given = scheduler_output.batch
        scheduled = numpy.array([scheduler_output.num_scheduled_tokens[request] for request in given.req_ids])
        batch = types.SimpleNamespace(
            req_ids=given.req_ids, num_scheduled_tokens=scheduled, query_start_loc_np=numpy.concatenate([[0], scheduled.cumsum()]),
            num_computed_tokens_np=given.num_computed_tokens_cpu,
            is_prefilling_np=given.num_computed_tokens_cpu < given.num_prompt_tokens)
        forward(self.buffer, int(scheduled.sum()) + scheduler_output.padding, scheduler_output.chosen)
        self.execute_model_state = types.SimpleNamespace(input_batch=batch)
        return None

    def sample_tokens(self, grammar_output):
        self.execute_model_state = None
        return "output"
""",
}


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """Writes a package; a file of None is left out."""
    for path, text in files.items():
        if text is None:
            continue
        place = folder / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
