from typing import TypeAlias

# Members of csrc/core/views.h in their order: data, dtype, documents, dim, row_stride,
# document_stride, width, offsets, mask, weights.
TokenBatch: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int]

def greedy_match(
    candidate: TokenBatch,
    candidate_rows: int,
    reference: TokenBatch,
    reference_rows: int,
    pairs: int,
    pair_count: int,
    precision: int,
    recall: int,
    f1: int,
    threads: int,
    alignment: list[int] | None = None,
) -> None: ...
def match_grid(
    candidate: TokenBatch,
    candidate_rows: int,
    reference: TokenBatch,
    reference_rows: int,
    diagonal: int,
    precision: int,
    recall: int,
    f1: int,
    threads: int,
) -> None: ...
def match_backward(
    candidate: TokenBatch,
    candidate_rows: int,
    reference: TokenBatch,
    reference_rows: int,
    pairs: int,
    pair_count: int,
    precision: int,
    recall: int,
    alignment: list[int],
    gradient: list[int],
    out: list[int],
    threads: int,
) -> None: ...
def validate(
    candidate: TokenBatch,
    candidate_rows: int,
    reference: TokenBatch,
    reference_rows: int,
    pairs: int,
    pair_count: int,
) -> None: ...
def attend(
    dtype: int,
    shape: tuple[int, int, int, int],
    q: tuple[int, ...],  # address; elements between texts, heads, tokens
    k: tuple[int, ...],  # address; elements between texts, heads, tokens
    v: tuple[int, ...],  # address; elements between texts, heads, tokens
    lengths: int,
    scale: float,
    out: int,
    threads: int,
) -> None: ...

# A packed weight: addresses of panels and bias (0: none), rows and columns of the plain weight.
def linear(
    x: int,
    rows: int,
    x_stride: int,
    weight: tuple[int, int, int, int],
    columns: int,  # of a panel
    activation: int,
    residual: int,
    residual_stride: int,
    out: int,
    threads: int,
) -> None: ...
def encode(
    x: int,
    out: int,
    texts: int,
    width: int,
    lengths: int,
    heads: int,
    weights: list[tuple[int, int, int, int]],  # query, key, value, projection, up, down
    columns: int,
    activation: int,
    norms: list[tuple[int, int, float]],  # weight, bias, eps
    threads: int,
) -> None: ...
def linear_columns() -> int: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def cuda_build() -> dict[str, str | list[str]]: ...

# Absent if built without CUDA; `_emulated` has one of the same name.
class CudaPlan:
    def __init__(
        self,
        candidate: TokenBatch,
        candidate_rows: int,
        reference: TokenBatch,
        reference_rows: int,
        pairs: int,
        pair_count: int,
        places: bool = ...,
    ) -> None: ...
    @staticmethod
    def why_unusable() -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    def run(
        self,
        precision: int,
        recall: int,
        f1: int,
        workspace: int,
        stream: int,
        alignment: list[int] = ...,
    ) -> None: ...

# Likewise. A side is keys, weight, slope, inverse, own, other of csrc/cuda/gradient.h.
_Side: TypeAlias = tuple[int, int, int, int, int, int]

def gradient_workspace(
    candidate: TokenBatch, reference: TokenBatch, pairs: int, pair_count: int
) -> int: ...
def gradient_edges(
    candidate: TokenBatch,
    reference: TokenBatch,
    pairs: int,
    pair_count: int,
    precision: int,
    recall: int,
    alignment: list[int],
    gradient: list[int],
    candidate_side: _Side,
    reference_side: _Side,
    workspace: int,
    stream: int,
) -> None: ...
def gradient_rows(
    own: TokenBatch,
    other: TokenBatch,
    own_side: _Side,
    other_side: _Side,
    own_similarity: int,
    other_similarity: int,
    order: int,
    start: int,
    tokens: int,
    weights: int,
    stream: int,
) -> None: ...
