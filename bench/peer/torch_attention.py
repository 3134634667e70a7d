"""PyTorch's attention kernels and their times, for the scripts beside this file."""
import statistics

import torch
from torch.nn.attention import SDPBackend

KERNELS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def seconds_of(body, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        body()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / launches


def median_seconds(body):
    """The median of five rounds of about a twentieth of a second, after a call in which the kernel chooses its plan."""
    body()
    launches = max(1, min(200, int(0.05 / seconds_of(body, 1))))
    return statistics.median(seconds_of(body, launches) for _ in range(5))
