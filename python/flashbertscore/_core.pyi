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
def isa() -> str: ...
def isas() -> list[str]: ...
