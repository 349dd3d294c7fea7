"""What runs here and how, for `flashbertscore doctor` and reports of faults."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from flashbertscore import attention, embeddings, layers, matching, memory, ops, pipeline, prepack
from flashbertscore._version import __version__
from flashbertscore.encoder import CACHE_SIZE, SWITCH, TOKEN_BUDGET, Encoder

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "bert-score")


def environment() -> dict[str, str]:
    """Return versions, kernels, threads and devices, as names and values to print."""
    build = ops.build_info()
    compiled = f"{build['cuda']} for {', '.join(build['cuda_architectures'])}"
    return {
        "flashbertscore": __version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": f"{platform.python_version()}, {platform.platform()}",
        "cpu kernels": f"{ops.isa()} (can run: {', '.join(build['cpu'])})",
        "cuda kernels": compiled if build["cuda"] else "not in this build",
        "threads": f"{torch.get_num_threads()} in torch and in our kernels, "
        f"{torch.get_num_interop_threads()} between operations, {os.cpu_count()} processors"
        + "".join(f", {name}={os.environ[name]}" for name in _THREADS if name in os.environ),
        "devices": ", ".join(["cpu", *_gpus()]),
        "torch's kernels": f"{torch.backends.cpu.get_cpu_capability()}, oneDNN "
        f"{'yes' if torch.backends.mkldnn.is_available() else 'no'}",  # type: ignore[no-untyped-call]
        "models kept": f"{CACHE_SIZE}",
        "batches": f"{TOKEN_BUDGET:,} tokens on the CPU, {memory.LEAST_TOKENS:,} to "
        f"{memory.MOST_TOKENS:,} on CUDA, by free memory",
        "chunks": f"{matching.CHUNK_TOKENS:,} tokens at most",
    }


def model(encoder: Encoder) -> dict[str, str]:
    """Return how a loaded model runs, as names and values to print."""
    config = getattr(encoder.model, "config", None)
    parameter = next(encoder.model.parameters())
    packed, linears = prepack.count(encoder.model)
    return {
        "model": f"{type(encoder.model).__name__} of {encoder.name}",
        "weights": f"{prepack.numel(encoder.model):,} "
        f"{str(parameter.dtype).removeprefix('torch.')}{' as tf32' * encoder.tf32} "
        f"on {parameter.device}",
        "tokenizer": f"{type(encoder.tokenizer).__name__}, at most "
        f"{encoder.max_length or 'any number of'} tokens",
        "attention": f"{attention.served_layers(encoder.model)} layers by our kernel, else "
        f"{getattr(config, '_attn_implementation', 'its own')}",
        "whole layers": f"{layers.served_layers(encoder.model)} in one call",
        "linear layers": f"{packed} of {linears} on packed weights",
        "embeddings kept": f"{pipeline.default_cache_bytes(encoder) >> 20} MiB at most "
        f"({embeddings.DEFAULT_BYTES >> 20} MiB, or what the weights take)",
    }


_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "FLASHBERTSCORE_ISA",
    SWITCH,
)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gpus() -> list[str]:
    found = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        found.append(f"cuda:{number} ({name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free)")
    return found
