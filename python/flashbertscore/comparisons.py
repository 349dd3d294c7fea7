"""What a scorer does beyond scoring pairs: grids, MBR decoding, explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashbertscore import allpairs, explanation, inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from flashbertscore.coverage import TextScores
    from flashbertscore.encoder import Encoder
    from flashbertscore.storage import Storage


class Comparisons:
    """Methods of :class:`flashbertscore.BERTScorer`, which has these attributes."""

    _idf_dict: Mapping[int, float] | None
    batch_size: int
    _storage: Storage
    if TYPE_CHECKING:  # of the scorer

        @property
        def _encoder(self) -> Encoder: ...
        @property
        def idf(self) -> bool | Mapping[int, float]: ...  # noqa: D102
        @property
        def rescale_with_baseline(self) -> bool: ...  # noqa: D102
        @property
        def baseline_vals(self) -> Tensor: ...  # noqa: D102

    def score_matrix(self, cands: Sequence[str], refs: Sequence[str]) -> TextScores:
        """Score every candidate with every reference; each distinct text is encoded once.

        The embeddings of all texts are held. Where both are the same texts, half the pairs are
        computed.

        Args:
            cands: C texts.
            refs: R texts.

        Returns:
            (P, R, F1), float32 [C, R] on the CPU, or [L, C, R] with all layers; rescaled if the
            scorer rescales. `coverage` tells how much of each text was scored.

        Raises:
            TypeError: a text is not a str; names the argument and index.
            TextError: the tokenizer or the model fails on a text, which is named.
            AssertionError: the scorer was made with idf=True and no IDF has been counted.
            ValueError: there is no baseline to rescale with.
        """
        return allpairs.score_matrix(self._method(), cands, refs)

    def mbr(
        self,
        hypotheses: Sequence[Sequence[str]],
        utilities: str = "f1",
        weights: Sequence[Sequence[float]] | None = None,
    ) -> allpairs.Choice:
        """Minimum Bayes risk decoding: of each group the hypothesis most like all others.

        The expected utility of hypothesis i of n is sum_j w_j u(i, j), where i is the candidate and
        j, which may be i, the reference (Eikema and Aziz, 2020). Equal hypotheses are scored once.

        Args:
            hypotheses: G groups of at least one text each.
            utilities: u: "f1", "precision" or "recall".
            weights: w, for each group as many numbers >= 0 as hypotheses, of any sum > 0 (they are
                divided by it): probabilities of the samples. None: all the same.

        Returns:
            ``index`` (int64 [G]), ``utility`` (float32 [G], rescaled if the scorer rescales), and
            ``expected``, the expected utility of every hypothesis of every group.

        Raises:
            TypeError: a text is not a str; names group and index.
            TextError: the tokenizer or the model fails on a text, which is named.
            ValueError: an empty group, an unknown utility, weights that do not fit, a scorer with
                all layers, or no baseline to rescale with.
            AssertionError: the scorer was made with idf=True and no IDF has been counted.
        """
        return allpairs.mbr(self._method(), hypotheses, utilities, weights)

    def explain(self, candidate: str, reference: str) -> explanation.Explanation:
        """Return the best match of every token of two texts, and what each costs.

        In memory that grows with the number of tokens, not with their product. Not rescaled token
        by token: contributions sum to the raw precision and recall.

        Args:
            candidate: a text.
            reference: a text.

        Raises:
            TypeError: a text is not a str.
            TextError: the tokenizer or the model fails on a text, which is named.
            ValueError: a scorer with all layers, or no baseline to rescale with.
            AssertionError: the scorer was made with idf=True and no IDF has been counted.
        """
        inputs.check_text(candidate, "candidate")
        inputs.check_text(reference, "reference")
        if self._encoder.all_layers:
            message = "explain: a scorer with all_layers has no one alignment; make one without"
            raise ValueError(message)
        return explanation.explain(self._method(), candidate, reference)

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of a text as they stand in it: those that begin a word with a space.

        Joined they read as the tokenizer decodes the text. One piece for each token that
        :meth:`explain` has, special ones included.
        """
        encoder = self._encoder
        (ids,) = encoder.tokenize([text]).tolist()
        return explanation.pieces(encoder.tokenizer, ids)

    def _method(self) -> allpairs.Method:
        if self.idf and not self._idf_dict:
            message = "IDF weights are not computed"
            raise AssertionError(message)
        return allpairs.Method(
            self._encoder,
            self._idf_dict if self.idf else None,
            self.baseline_vals if self.rescale_with_baseline else None,
            self.batch_size,
            self._storage,
        )
