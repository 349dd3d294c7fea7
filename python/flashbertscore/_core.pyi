class TokenBatch:
    def __init__(
        self,
        data: int,
        dtype: int,
        documents: int,
        dim: int,
        row_stride: int,
        document_stride: int,
        width: int,
        offsets: int,
        mask: int,
        weights: int,
    ) -> None: ...

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
    ) -> None: ...
    @staticmethod
    def why_unusable() -> str: ...
    @property
    def workspace_bytes(self) -> int: ...
    def run(self, precision: int, recall: int, f1: int, workspace: int, stream: int) -> None: ...
