"""IDF: counted from packed ids as the reference counts from texts."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
import torch

from flashbertscore import idf
from flashbertscore.encoder import load
from flashbertscore.scorer import BERTScorer
from flashbertscore.tokens import Tokens
from helpers import reference
from helpers.texts import REFERENCES, SENTENCES

TinyModel = Callable[[str], str]


def tokens_of(*documents: list[int]) -> Tokens:
    lengths = torch.tensor([len(document) for document in documents], dtype=torch.int64)
    return Tokens(
        torch.tensor([token for document in documents for token in document], dtype=torch.int64),
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        lengths,
        torch.zeros(len(documents), dtype=torch.bool),
    )


def test_formula() -> None:
    documents = [[1, 5, 5, 2], [1, 7, 2], [1, 2], [1, 5, 9, 2]]
    found = idf.count(tokens_of(*documents), torch.arange(4))
    frequency = Counter(token for document in documents for token in set(document))
    assert dict(found) == {t: math.log(5 / (df + 1)) for t, df in frequency.items()}
    assert found[1] == 0.0  # in all of them
    assert found[10**9] == math.log(5)


def test_a_text_that_stands_twice_counts_twice() -> None:
    twice = idf.count(tokens_of([3], [4]), torch.tensor([0, 1, 0, 0]))
    four = idf.count(tokens_of([3], [4], [3], [3]), torch.arange(4))
    assert dict(twice) == dict(four) == {3: math.log(5 / 4), 4: math.log(5 / 2)}


def test_texts_that_are_no_document_do_not_count() -> None:
    found = idf.count(tokens_of([3], [4]), torch.tensor([0]))
    assert 4 not in found
    assert found[3] == math.log(2 / 2)


def test_no_documents() -> None:
    found = idf.count(tokens_of(), torch.empty(0, dtype=torch.int64))
    assert dict(found) == {}
    assert found[0] == 0.0


@pytest.mark.parametrize("family", ["bert", "t5", "xlm-roberta"])
def test_same_as_the_reference(family: str, tiny_model: TinyModel) -> None:
    path = tiny_model(family)
    texts = [*REFERENCES, *REFERENCES[:3], "It is raining."]
    ours = BERTScorer(path, 3, idf=True, idf_sents=texts)._idf_dict
    tokenizer = reference.make_scorer(path, 3)._tokenizer
    theirs = reference.bert_score.utils.get_idf_dict(texts, tokenizer, nthreads=0)
    assert ours == theirs
    assert ours[10**9] == theirs[10**9]


def test_looking_up_adds_nothing_and_it_pickles_and_copies() -> None:
    found = idf.count(tokens_of([3, 4], [4]), torch.arange(2))
    size = len(found)
    assert isinstance(found, defaultdict)
    for again in (found, pickle.loads(pickle.dumps(found)), copy.deepcopy(found), found.copy()):  # noqa: S301
        assert again[99] == math.log(3)
        assert again == found
        assert len(again) == size


def test_weights_of_tokens() -> None:
    tokens = tokens_of([3, 4, 3], [], [9])
    weights = idf.weigh(tokens, {3: 0.5, 4: 2.0, 9: 0.0})
    assert weights.dtype == torch.float32
    assert weights.tolist() == [0.5, 2.0, 0.5, 0.0]
    assert idf.weigh(tokens_of([]), {}).shape == (0,)


def test_a_dictionary_of_a_caller_is_not_changed() -> None:
    given = defaultdict(lambda: 0.25, {3: 1.0})
    assert idf.weigh(tokens_of([3, 4]), given).tolist() == [1.0, 0.25]
    assert dict(given) == {3: 1.0}


def test_a_mapping_with_its_own_default() -> None:
    class Table(dict[int, float]):
        def __missing__(self, token: int) -> float:
            return token / 2

    assert idf.weigh(tokens_of([3, 4]), Table({3: 1.0})).tolist() == [1.0, 2.0]


def test_a_plain_dictionary_that_lacks_an_id() -> None:
    with pytest.raises(KeyError, match=r"no weight for token id 4; .* Pass a defaultdict"):
        idf.weigh(tokens_of([3, 4]), {3: 1.0})


def test_weights_without_idf() -> None:
    tokens = tokens_of([2, 7, 3, 7, 3], [2, 3])
    assert idf.uniform(tokens, (3, 2)).tolist() == [0, 1, 0, 1, 0, 0, 0]
    assert idf.uniform(tokens, (None, None)).tolist() == [1.0] * 7


def test_computing_it_again_warns_as_the_reference_does(tiny_model: TinyModel) -> None:
    scorer = BERTScorer(tiny_model("bert"), 3, idf=True)
    with pytest.raises(AssertionError, match="IDF weights are not computed"):
        scorer.score(["a"], ["b"])
    scorer.compute_idf(SENTENCES[:5])
    with pytest.warns(UserWarning, match="Overwriting the previous importance weights"):
        scorer.compute_idf(SENTENCES[5:9])
    tokens = load(tiny_model("bert"), 3).tokenize(list(SENTENCES[5:9]))
    assert scorer._idf_dict == idf.count(tokens, torch.arange(4))


def test_idf_sents_without_idf_is_counted_and_not_used(tiny_model: TinyModel) -> None:
    path = tiny_model("bert")
    plain, counted = BERTScorer(path, 3), BERTScorer(path, 3, idf_sents=SENTENCES)
    assert counted._idf_dict
    a, b = (scorer.score(SENTENCES[:4], SENTENCES[4:8]) for scorer in (plain, counted))
    assert reference.largest_difference(a, b) == 0.0


def test_books_are_counted_as_sentences_are() -> None:
    """Of documents longer than the vocabulary each is counted by itself."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([500, 0, 700, 3])
    ids = torch.randint(0, 40, (int(lengths.sum()),), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    books = Tokens(ids, offsets, lengths, torch.zeros(4, dtype=torch.bool))
    documents = torch.tensor([0, 2, 2, 3, 1])
    sets = [set(ids[a:b].tolist()) for a, b in itertools.pairwise(offsets.tolist())]
    frequency = Counter(token for text in documents.tolist() for token in sets[text])
    found = idf.count(books, documents)
    assert found == {token: math.log(6 / (count + 1)) for token, count in frequency.items()}
