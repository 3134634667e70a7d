"""The shapes and settings that are compared."""

import block_methods as b
import lookahead_methods as l
import page_methods as p
import token_methods as t
from method import Full
from model import Shape

SHAPES = [Shape(layers=3, query_heads=8, kv_heads=2, dim=64),
          Shape(layers=2, query_heads=3, kv_heads=3, dim=128, theta=500000.0, eviction_head=False, calibrated=False),
          Shape(layers=4, query_heads=16, kv_heads=1, dim=64, hidden=96)]

CHECKERS = {"full": Full, "streaming": b.Streaming, "infllmv2": b.InfLLMv2, "dma": b.DMA, "nosa": b.NOSA,
            "quest": b.Quest, "dma-token": t.DMAToken, "double-sparsity": t.DoubleSparsity, "asynctls": t.AsyncTLS,
            "h2o": t.H2O, "snapkv": t.SnapKV, "locret": t.Locret, "arkvale": p.ArkVale, "infllm": p.InfLLM,
            "shadowkv": p.ShadowKV, "sparda": l.SparDA, "infinigen": l.InfiniGen, "infinigen-token": l.InfiniGenToken}
NEEDS_EVICTION_HEAD = {"dma", "nosa", "dma-token"}

GRID = {"kernel_size": 32, "kernel_stride": 16}
BLOCKS = {"block_size": 64, "sink_blocks": 1, "window_blocks": 2, "window_adds_current": True, "total_blocks": 8}
SMALL = {"block_size": 16, "sink_blocks": 2, "window_blocks": 3, "window_adds_current": False, "total_blocks": 12,
         "kernel_size": 8, "kernel_stride": 4}
TLS = {"block_size": 32, "k_b": 8, "k_t": 12, "d_c": 16, "label_bits": 4, "lag": 1, "sink_blocks": 0,
       "window_blocks": 0}
ARK = {"block_size": 32, "page_budget": 9, "page_topks": 0, "sink_blocks": 2, "window_blocks": 2, "groups": "layer",
       "digest": "cuboid-mean", "skip_layers": 1}
QUEST = {"block_size": 16, "sink_blocks": 0, "window_blocks": 0, "window_adds_current": True, "total_blocks": 16,
         "skip_layers": 0, "bound": "max", "group": "sum"}
H2O = {"heavy_ratio": 0.1, "recent_ratio": 0.1, "heavy_tokens": 0, "recent_tokens": 0}
SNAP = {"capacity_tokens": 200, "window_tokens": 32, "pooling_kernel": 7, "pooling": "max"}
INFINI = {"partial_dims": 16, "warmup_tokens": 2048, "dense_layers": 1}

ITOKEN = {"partial_ratio": 0.2, "alpha": 4, "max_num_kv": 400, "warmup_tokens": 2048, "dense_layers": 1}
INFLLM = {"block_size": 32, "init_tokens": 32, "local_tokens": 100, "topk_blocks": 3, "cached_blocks": 4,
          "repr_topk": 2, "groups": "layer"}
SHADOW = {"block_size": 16, "chunk_tokens": 8, "rank": 24, "budget_tokens": 64, "outlier_tokens": 24,
          "local_chunks": 3}
LOCRET = {"budget_tokens": 150, "prefill_chunk": 128, "stabilizers": 60, "local_len": 20}

CASES = [
    ("full", {}), ("full", {"bias": "none"}), ("full", {"bias": "dma", "bias_scale": "nosi"}),
    ("streaming", BLOCKS | {"total_blocks": None}), ("streaming", {"block_size": 32, "sink_blocks": 0,
                                                                    "window_blocks": 3, "window_adds_current": False}),
    ("infllmv2", BLOCKS | GRID), ("infllmv2", SMALL),
    ("infllmv2", BLOCKS | {"kernel_size": 48, "kernel_stride": 16, "block_size": 32}),
    ("infllmv2", BLOCKS | GRID | {"lse": "compressed"}), ("infllmv2", SMALL | {"lse": "compressed"}),
    ("infllmv2", BLOCKS | GRID | {"dense_len": 340}), ("nosa", BLOCKS | GRID | {"select_blocks": 3, "dense_len": 340}),
    ("dma", BLOCKS | GRID), ("dma", BLOCKS | GRID | {"bias": "dma"}), ("dma", SMALL | {"bias": "s-dma"}),
    ("nosa", BLOCKS | GRID | {"select_blocks": 3}), ("nosa", SMALL | {"select_blocks": 4}),
    ("nosa", BLOCKS | GRID | {"select_blocks": 3, "bias": "dma"}),
    ("quest", BLOCKS | {"skip_layers": 1, "group": "sum", "bound": "max"}),
    ("quest", BLOCKS | {"skip_layers": 0, "group": "max", "bound": "max", "block_size": 16}),
    ("quest", BLOCKS | {"skip_layers": 0, "group": "sum", "bound": "product"}),
    ("quest", BLOCKS | {"skip_layers": 0, "group": "sum", "bound": "cuboid-mean", "block_size": 32}),
    ("quest", QUEST), ("quest", QUEST | {"group": "per_query_head"}),
    ("quest", BLOCKS | {"skip_layers": 0, "group": "per_query_head", "bound": "cuboid-mean", "block_size": 32}),
    ("dma-token", {"budget_tokens": 100}),
    ("double-sparsity", {"heavy_tokens": 64, "group_factor": 8, "label_bits": 4}),
    ("double-sparsity", {"heavy_tokens": 64, "group_factor": 4, "label_bits": 16}),
    ("quest", QUEST | {"group": "max", "bound": "product"}),
    ("quest", QUEST | {"group": "max", "bound": "cuboid-mean"}),
    ("asynctls", TLS), ("asynctls", TLS | {"lag": 0}), ("asynctls", TLS | {"sink_blocks": 1, "window_blocks": 2}),
    ("asynctls", TLS | {"label_bits": 16, "block_size": 64, "k_b": 4}),
    ("h2o", H2O), ("h2o", H2O | {"heavy_tokens": 40, "recent_tokens": 25}),
    ("snapkv", SNAP), ("snapkv", SNAP | {"pooling": "avg", "window_tokens": 16, "pooling_kernel": 5}),
    ("arkvale", ARK), ("arkvale", ARK | {"groups": "head", "digest": "bounds", "skip_layers": 0}),
    ("arkvale", ARK | {"window_blocks": 4, "page_topks": 8, "page_budget": 12}),
    ("arkvale", ARK | {"prefetch_layers": 1}),
    ("arkvale", ARK | {"prefetch_layers": 1, "groups": "head", "skip_layers": 0, "window_blocks": 1}),
    ("sparda", BLOCKS | GRID | {"backbone": "nosa", "select_blocks": 3, "offload_layer0": False}),
    ("sparda", SMALL | {"backbone": "infllmv2"}), ("sparda", SMALL | {"backbone": "infllmv2", "dense_len": 340}),
    ("infinigen", BLOCKS | INFINI), ("infinigen", BLOCKS | INFINI | {"warmup_tokens": 100, "block_size": 16}),
    ("infinigen-token", ITOKEN), ("infinigen-token", ITOKEN | {"alpha": 2, "max_num_kv": 20, "partial_ratio": 0.3}),
    ("infllm", INFLLM), ("infllm", INFLLM | {"groups": "head", "block_size": 16, "init_tokens": 20, "repr_topk": 4}),
    ("shadowkv", SHADOW), ("shadowkv", SHADOW | {"chunk_tokens": 16, "rank": 20, "outlier_tokens": 0}),
    ("shadowkv", SHADOW | {"block_size": 64, "chunk_tokens": 64, "budget_tokens": 192,
                           "outlier_tokens": 128, "local_chunks": 4}),
    ("infllm", INFLLM | {"prefill": "sparse", "exc_block": 64}),
    ("infllm", INFLLM | {"prefill": "sparse", "exc_block": 100, "groups": "head"}),
    ("locret", LOCRET), ("locret", LOCRET | {"budget_tokens": 90, "prefill_chunk": 77, "stabilizers": 30}),
    ("infllmv2", BLOCKS | GRID | {"block_size": 32, "total_blocks": 5, "prefill": "sparse"}),
    ("infllmv2", BLOCKS | GRID | {"block_size": 32, "total_blocks": 5, "prefill": "sparse", "lse": "compressed"}),
    ("nosa", BLOCKS | GRID | {"block_size": 32, "total_blocks": 6, "select_blocks": 2, "prefill": "sparse"}),
    ("dma", BLOCKS | GRID | {"block_size": 32, "total_blocks": 6, "prefill": "sparse"}),
    ("quest", BLOCKS | {"skip_layers": 1, "block_size": 16, "total_blocks": 6, "prefill": "sparse"}),
    ("streaming", {"block_size": 32, "sink_blocks": 1, "window_blocks": 2, "prefill": "sparse"}),
    ("sparda", BLOCKS | GRID | {"block_size": 32, "total_blocks": 6, "backbone": "nosa", "select_blocks": 2,
                                "prefill": "sparse"}),
    ("sparda", SMALL | {"backbone": "infllmv2", "prefill": "sparse"}),
]
CASES = [(name, {k: v for k, v in settings.items() if v is not None}) for name, settings in CASES]
