"""Tiny random models of every family, saved the way published checkpoints are.

Each directory holds config.json, model.safetensors, the vocabulary files that both the slow and the
fast tokenizer of the family load, and tokenizer_config.json: what `from_pretrained` finds for a
published model, at a thousandth of the size.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from helpers.texts import SENTENCES

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


@dataclass(frozen=True)
class Family:
    """How one family is built: its tokenizer files, its classes and what the config is given."""

    write_tokenizer: Callable[[Path, Sequence[str]], int]
    config: str
    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    tokenizer_config: dict[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        return str(getattr(transformers, self.config).model_type)


def _size(base: int, texts: Sequence[str]) -> int:
    return base + 4 * (len(texts) - len(SENTENCES))


def write_wordpiece(
    path: Path,
    texts: Sequence[str],
    specials: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *,
    lowercase: bool = True,
) -> int:
    tokenizer = Tokenizer(models.WordPiece(unk_token=specials[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_size(360, texts), special_tokens=list(specials), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer numbers equally frequent pieces in an order that changes from run to run.
    vocab = [*specials, *sorted(set(tokenizer.get_vocab()) - set(specials))]
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in vocab), encoding="utf-8")
    return len(vocab)


def write_cased(path: Path, texts: Sequence[str]) -> int:
    return write_wordpiece(path, texts, lowercase=False)


def write_mpnet(path: Path, texts: Sequence[str]) -> int:
    return write_wordpiece(path, texts, ("<pad>", "[UNK]", "<s>", "</s>", "<mask>"))


def train_byte_level(texts: Sequence[str], specials: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_size(500, texts),
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_byte_level(
    path: Path,
    texts: Sequence[str],
    specials: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
) -> int:
    model = json.loads(train_byte_level(texts, specials).to_str())["model"]
    (path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    return len(model["vocab"])


def write_deberta_v1(path: Path, texts: Sequence[str]) -> int:
    return write_byte_level(path, texts, ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))


def write_gpt2(path: Path, texts: Sequence[str]) -> int:
    return write_byte_level(path, texts, ("<|endoftext|>",))


def write_modernbert(path: Path, texts: Sequence[str]) -> int:
    """A tokenizer.json only: the family has no slow tokenizer."""
    tokenizer = train_byte_level(texts, ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def write_sentencepiece(path: Path, texts: Sequence[str], name: str, **options: Any) -> int:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text for text in texts if "\0" not in text),
        model_writer=written,
        vocab_size=_size(260, texts),
        hard_vocab_limit=False,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=3,
        **options,
    )
    (path / name).write_bytes(written.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return int(processor.get_piece_size())


def write_xlm_roberta(path: Path, texts: Sequence[str]) -> int:
    # fairseq's ids: one shifted, <mask> appended.
    return write_sentencepiece(path, texts, "sentencepiece.bpe.model") + 2


def write_albert(path: Path, texts: Sequence[str]) -> int:
    return write_sentencepiece(
        path,
        texts,
        "spiece.model",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        normalization_rule_name="nmt_nfkc_cf",
    )


def write_deberta_v2(path: Path, texts: Sequence[str]) -> int:
    return (
        write_sentencepiece(
            path,
            texts,
            "spm.model",
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece="[PAD]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            unk_piece="[UNK]",
        )
        + 1
    )


def write_t5(path: Path, texts: Sequence[str]) -> int:
    return write_sentencepiece(path, texts, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def write_xlnet(path: Path, texts: Sequence[str]) -> int:
    return write_sentencepiece(
        path,
        texts,
        "spiece.model",
        unk_id=0,
        bos_id=1,
        eos_id=2,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>"],
        user_defined_symbols=["<eod>", "<eop>"],
    )


ROBERTA_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

FAMILIES: dict[str, Family] = {
    # Its own tokenizer needs sacremoses; the model does not care which ids it gets.
    "xlm": Family(
        write_wordpiece,
        "XLMConfig",
        "XLMModel",
        {"emb_dim": 32, "n_layers": 4, "n_heads": 4, "max_position_embeddings": 512}
        | {"pad_index": 0, "pad_token_id": 0},
        {"tokenizer_class": "BertTokenizer"},
    ),
    "gpt2": Family(
        write_gpt2,
        "GPT2Config",
        "GPT2Model",
        {"n_embd": 32, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "bert": Family(write_wordpiece, "BertConfig", "BertModel", SMALL),
    "bert-cased": Family(write_cased, "BertConfig", "BertModel", SMALL, {"do_lower_case": False}),
    "electra": Family(
        write_wordpiece, "ElectraConfig", "ElectraModel", SMALL | {"embedding_size": 16}
    ),
    "distilbert": Family(
        write_wordpiece,
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48},
    ),
    "mpnet": Family(
        write_mpnet,
        "MPNetConfig",
        "MPNetModel",
        SMALL | {"pad_token_id": 1, "max_position_embeddings": 514},
    ),
    "roberta": Family(
        write_byte_level,
        "RobertaConfig",
        "RobertaModel",
        SMALL | ROBERTA_IDS | {"max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "longformer": Family(
        write_byte_level,
        "LongformerConfig",
        "LongformerModel",
        SMALL | ROBERTA_IDS | {"attention_window": 8, "max_position_embeddings": 514},
    ),
    # Its own tokenizer is sentencepiece's; the model does not care which ids it gets.
    "big-bird": Family(
        write_wordpiece,
        "BigBirdConfig",
        "BigBirdModel",
        SMALL | {"max_position_embeddings": 512},
        {"tokenizer_class": "BertTokenizer"},
    ),
    "led": Family(
        write_byte_level,
        "LEDConfig",
        "LEDModel",
        ROBERTA_IDS
        | {
            "d_model": 32,
            "encoder_layers": 4,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "attention_window": 8,
            "max_encoder_position_embeddings": 512,
        },
    ),
    "bart": Family(
        write_byte_level,
        "BartConfig",
        "BartModel",
        ROBERTA_IDS
        | {
            "d_model": 32,
            "encoder_layers": 4,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 512,
        },
    ),
    "deberta": Family(
        write_deberta_v1,
        "DebertaConfig",
        "DebertaModel",
        SMALL
        | {
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["c2p", "p2c"],
            "max_relative_positions": -1,
            "type_vocab_size": 0,
        },
    ),
    "modernbert": Family(
        write_modernbert,
        "ModernBertConfig",
        "ModernBertModel",
        SMALL
        | {
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "pad_token_id": 3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "mask_token": "[MASK]",
        },
    ),
    "xlm-roberta": Family(
        write_xlm_roberta,
        "XLMRobertaConfig",
        "XLMRobertaModel",
        SMALL | ROBERTA_IDS | {"max_position_embeddings": 514, "type_vocab_size": 1},
    ),
    "albert": Family(
        write_albert,
        "AlbertConfig",
        "AlbertModel",
        SMALL
        | {"embedding_size": 16, "num_hidden_groups": 2, "bos_token_id": 2, "eos_token_id": 3},
    ),
    "deberta-v2": Family(
        write_deberta_v2,
        "DebertaV2Config",
        "DebertaV2Model",
        SMALL
        | {
            "relative_attention": True,
            "position_biased_input": True,
            "pos_att_type": ["p2c", "c2p"],
            "type_vocab_size": 0,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        },
        {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False},
    ),
    "deberta-v3": Family(
        write_deberta_v2,
        "DebertaV2Config",
        "DebertaV2Model",
        SMALL
        | {
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "type_vocab_size": 0,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "max_relative_positions": -1,
        },
        {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False},
    ),
    # "t5" stands in the directory's name: the reference picks the class by that.
    "t5": Family(
        write_t5,
        "T5Config",
        "T5Model",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 4,
            "num_decoder_layers": 1,
            "num_heads": 4,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
        {"extra_ids": 0},
    ),
    "xlnet": Family(
        write_xlnet,
        "XLNetConfig",
        "XLNetModel",
        {
            "d_model": 32,
            "n_layer": 4,
            "n_head": 4,
            "d_inner": 48,
            "pad_token_id": 5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}


def save_tokenizer(
    family: str,
    path: Path,
    max_length: int | None = 512,
    texts: Sequence[str] = SENTENCES,
) -> int:
    """Write the tokenizer files of `family` into `path`; returns the size of the vocabulary."""
    made = FAMILIES[family]
    size = made.write_tokenizer(path, texts)
    settings = dict(made.tokenizer_config)
    if max_length is not None:
        settings["model_max_length"] = max_length
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return size


def save_config(family: str, path: Path, size: int, **settings: Any) -> Any:
    """Write config.json for a vocabulary of `size` into `path`, and return it."""
    made = FAMILIES[family]
    config = getattr(transformers, made.config)(vocab_size=size, **(made.settings | settings))
    config.save_pretrained(path)
    return config


def save_model(
    family: str, path: Path, *, max_length: int | None = 512, seed: int = 0, **settings: Any
) -> Path:
    """Save a tiny random model of `family` with its tokenizer into `path` and return `path`.

    Weights are drawn with a spread that keeps layers apart: at the default initialisation every
    token of a tiny model would come out nearly parallel and no difference would show.
    """
    path.mkdir(parents=True, exist_ok=True)
    size = save_tokenizer(family, path, max_length)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = save_config(family, path, size, **settings)
        model = getattr(transformers, FAMILIES[family].model)(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.25)
        model.save_pretrained(path)
    return path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers, and the reference through it, off the terminal and off the warnings."""
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(verbosity)
        log.enable_progress_bar()
