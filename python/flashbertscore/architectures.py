"""What differs from one model family to the next. A new family is one entry here."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

# Tokenizer classes whose slow version the reference asks for a space before the first word.
PREFIX_SPACE_TOKENIZERS = frozenset({"RobertaTokenizer", "GPT2Tokenizer"})

# Model types whose tokenizer is one of these where tokenizer_config.json does not name a class.
PREFIX_SPACE_MODELS = frozenset(
    {
        "data2vec-text",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gptj",
        "ibert",
        "mega",
        "mra",
        "opt",
        "roberta",
        "roberta-prelayernorm",
        "starcoder2",
    }
)

# Model types that transformers 5 saves with one of these classes; under 4 they had classes of their
# own, and no space.
OWN_TOKENIZERS = frozenset({"bart", "codegen", "lilt", "longformer", "phi"})

# Encoder-decoder types with a class of transformers for the encoder alone; of all others
# AutoModel loads both halves and the decoder is dropped.
ENCODER_CLASSES = {
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "longt5": "LongT5EncoderModel",
}


def wants_prefix_space(
    tokenizer_class: str | None, model_type: str | None, *, saved_by_5: bool = False
) -> bool:
    """Whether ids are taken with a space before the first word.

    Args:
        tokenizer_class: the class that tokenizer_config.json or config.json names, if any.
        model_type: the `model_type` of config.json.
        saved_by_5: whether transformers 5 wrote the name of the class.
    """
    if saved_by_5 and model_type in OWN_TOKENIZERS:
        return False
    if tokenizer_class:
        return tokenizer_class.removesuffix("Fast") in PREFIX_SPACE_TOKENIZERS
    return model_type in PREFIX_SPACE_MODELS


def keep_layers(model: Any, num_layers: int, name: str) -> None:
    """Drop the layers above `num_layers` (the reference's `get_model`).

    The norm that a model applies after its last layer stays: for families that have one the result
    is not the hidden state that the whole model has after layer `num_layers`.

    Raises:
        AssertionError: the model has not that many layers (as in the reference).
        ValueError: the layers are in none of the places where families keep them.
    """
    if hasattr(model, "n_layers"):  # XLM
        _check(num_layers, model.n_layers, name)
        model.n_layers = num_layers
    elif hasattr(model, "layer"):  # XLNet
        model.layer = _first(model.layer, num_layers, name)
    elif hasattr(model, "encoder"):
        encoder = model.encoder
        if hasattr(encoder, "albert_layer_groups"):  # ALBERT: one layer applied again and again
            _check(num_layers, encoder.config.num_hidden_layers, name)
            encoder.config.num_hidden_layers = num_layers
        elif hasattr(encoder, "block"):  # T5
            encoder.block = _first(encoder.block, num_layers, name)
        elif hasattr(encoder, "layer"):  # BERT, RoBERTa, ELECTRA, DeBERTa, MPNet, Longformer
            encoder.layer = _first(encoder.layer, num_layers, name)
            if num_layers == 0 and model.config.model_type == "deberta-v2":
                model.encoder = _NoLayers()
        else:
            raise _unsupported(model, name)
    elif hasattr(model, "transformer") and hasattr(model.transformer, "layer"):  # DistilBERT
        model.transformer.layer = _first(model.transformer.layer, num_layers, name)
    elif hasattr(model, "layers"):  # BART, ModernBERT, Llama
        model.layers = _first(model.layers, num_layers, name)
    else:
        raise _unsupported(model, name)


def position_limit(model: nn.Module) -> int | None:
    """Return how many tokens the model's table of positions can tell apart.

    None where there is no such table: relative, rotary and computed positions.
    """
    for path, module in model.named_modules():
        name = path.rpartition(".")[2]
        if name in {"position_embeddings", "embed_positions", "wpe"} and isinstance(
            module, nn.Embedding
        ):
            offset = getattr(module, "offset", 0)  # BART
            if module.padding_idx is not None:  # RoBERTa counts from the padding id + 1
                offset = max(offset, module.padding_idx + 1)
            return module.num_embeddings - int(offset)
    return None


def depends_on_longest(model: Any) -> bool:
    """Whether a text's embeddings depend on how long the longest text of its batch is.

    BigBird attends to blocks, and fully where no text of a batch is long enough for that.
    """
    config = getattr(model, "config", None)
    return (
        getattr(config, "model_type", None) == "big_bird"
        and getattr(config, "attention_type", None) == "block_sparse"
    )


def keep_block_sparse(model: Any) -> None:
    """Undo before every batch what BigBird does for good at the first short one.

    From then on it would attend fully, also to long texts: scores would depend on what came before.
    """
    if depends_on_longest(model):
        model.register_forward_pre_hook(_attend_as_length_asks, with_kwargs=True)


def _attend_as_length_asks(model: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    ids = given[0] if given else named["input_ids"]
    # As BigBirdModel.forward has it: first, last and sliding blocks, and twice the random ones.
    shortest = (5 + 2 * model.config.num_random_blocks) * model.config.block_size
    is_long = ids.shape[1] > shortest
    model.set_attention_type("block_sparse" if is_long else "original_full")


class _Hidden(NamedTuple):
    last_hidden_state: torch.Tensor
    hidden_states: tuple[torch.Tensor]
    attentions: None = None


class _NoLayers(nn.Module):
    """An encoder without layers; that of DeBERTa-v2 needs at least one to return anything."""

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> _Hidden:
        return _Hidden(hidden_states, (hidden_states,))


def _first(layers: Any, num_layers: int, name: str) -> nn.ModuleList:
    _check(num_layers, len(layers), name)
    return nn.ModuleList(list(layers)[:num_layers])


def _check(num_layers: int, depth: int, name: str) -> None:
    if not 0 <= num_layers <= depth:
        msg = f"Invalid num_layers: num_layers should be between 0 and {depth} for {name}"
        raise AssertionError(msg)


def _unsupported(model: Any, name: str) -> ValueError:
    return ValueError(
        f"Not supported: {name} is a {type(model).__name__}, whose layers are in none of the "
        "places where flashbertscore.architectures.keep_layers looks"
    )
