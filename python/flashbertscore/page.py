"""An explanation as a page of HTML that needs nothing else: no network, no other file.

Both texts stand side by side, each token on the colour of its similarity; pointing at one marks its
match. A table lists the tokens that cost most score. Some 100 bytes a token.
"""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashbertscore.explanation import Explanation, Token

_COSTLY = 20  # tokens in the table
_COLOURS = ((248, 178, 119), (250, 247, 209), (151, 194, 237))  # low, middle, high similarity

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.7 system-ui, sans-serif; color: #1b1b1b; margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .5rem; }
h2 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.scores { display: flex; gap: 2rem; flex-wrap: wrap; }
.scores b { font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.texts { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5rem; }
@media (max-width: 50rem) { .texts { grid-template-columns: 1fr; } }
.text { border: 1px solid #ccc; border-radius: 6px; padding: .75rem; overflow-wrap: anywhere; }
.long .text { max-height: 70vh; overflow-y: auto; }
.t { border-radius: 3px; padding: .1em 0; cursor: default; white-space: pre-wrap; }
.t.s { font-size: .75em; color: #555; }
.t.on { outline: 2px solid #b00020; }
.t:focus { outline: 2px solid #b00020; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: start; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: end; }
.scale { display: inline-block; width: 10rem; height: .8rem; border-radius: 3px;
  border: 1px solid #ccc; vertical-align: middle;
  background: linear-gradient(90deg, rgb(248 178 119), rgb(250 247 209), rgb(151 194 237)); }
.note, #here { color: #555; font-size: .9rem; }
#here { position: sticky; bottom: 0; background: #fff; padding: .4rem 0; min-height: 1.6em; }
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById('matches').textContent);
const sides = [...document.querySelectorAll('.text')].map(e => [...e.querySelectorAll('.t')]);
const here = document.getElementById('here');
let marked = [];
function show(side, i) {
  for (const e of marked) e.classList.remove('on');
  const [match, similarity, cost] = data[side][i];
  const own = sides[side][i], other = match === null ? null : sides[1 - side][match];
  marked = other ? [own, other] : [own];
  for (const e of marked) e.classList.add('on');
  here.textContent = own.textContent.trim() + ' → ' + (other ? other.textContent.trim() : '—') +
    '   similarity ' + similarity.toFixed(4) + '   costs ' + cost.toFixed(5);
  const box = other && other.closest('.long .text');
  if (box) box.scrollTop = other.offsetTop - box.offsetTop - box.clientHeight / 2;
}
sides.forEach((tokens, side) => tokens.forEach((e, i) => {
  e.addEventListener('mouseenter', () => show(side, i));
  e.addEventListener('focus', () => show(side, i));
}));
"""


def render(
    explanation: Explanation,
    candidate: Sequence[str],
    reference: Sequence[str],
    *,
    title: str,
    signature: str,
) -> str:
    """Return the page.

    Args:
        explanation: what to draw.
        candidate: how each token of the candidate stands in its text, with the space before it.
        reference: likewise.
        title: heading of the page.
        signature: of the scorer.
    """
    e = explanation
    many = max(len(e.candidate), len(e.reference)) > 400
    scores = "".join(
        f"<div>{name}<br><b>{value:.6f}</b></div>"
        for name, value in (("F1", e.f1), ("Precision", e.precision), ("Recall", e.recall))
    )
    if e.rescaled is not None:
        scores += f"<div>F1, rescaled<br><b>{e.rescaled[2]:.6f}</b></div>"
    matches = [
        [[t.match, round(t.similarity, 6), round(t.cost, 7)] for t in side]
        for side in (e.candidate, e.reference)
    ]
    # A JSON string inside a script element must not be able to end it.
    data = json.dumps(matches, separators=(",", ":")).replace("<", "\\u003c")
    return "".join(
        [
            '<!doctype html>\n<html lang="und"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
            f'<body class="{"long" if many else ""}"><h1>{html.escape(title)}</h1>',
            f'<div class="scores">{scores}</div>',
            '<p class="note">Similarity of each token to its best match: low '
            '<span class="scale"></span> high. Point at a token to see its match.</p>',
            '<div class="texts">',
            _text("Candidate (precision)", e.candidate, candidate),
            _text("Reference (recall)", e.reference, reference),
            '</div><p id="here" aria-live="polite"></p>',
            _table("What costs most precision", e.candidate, e.reference),
            _table("What costs most recall", e.reference, e.candidate),
            f'<p class="note">Coverage: {e.coverage}</p>',
            f'<p class="note">{html.escape(signature)}</p>',
            f'<script type="application/json" id="matches">{data}</script>',
            f"<script>{_SCRIPT}</script></body></html>\n",
        ]
    )


def _colour(similarity: float) -> str:
    """From orange over pale yellow to blue: apart also for who does not see red and green."""
    x = 2 * min(max((similarity - 0.2) / 0.8, 0.0), 1.0)  # cosines of contextual tokens lie there
    low, high = _COLOURS[:2] if x < 1 else _COLOURS[1:]
    mixed = (a + (b - a) * (x % 1 if x < 2 else 1) for a, b in zip(low, high, strict=True))
    return "rgb({:.0f} {:.0f} {:.0f})".format(*mixed)


def _text(name: str, tokens: Sequence[Token], pieces: Sequence[str]) -> str:
    spans = "".join(
        # A direction of its own: [CLS] must not decide that of the text.
        f'<span class="t{" s" if token.special else ""}"{" dir=ltr" if token.special else ""}'
        ' tabindex="0"'
        f' style="background:{_colour(token.similarity)}">{html.escape(piece)}</span>'
        for token, piece in zip(tokens, pieces, strict=True)
    )
    return (
        f'<section><h2>{html.escape(name)}</h2><div class="text" dir="auto">{spans}</div></section>'
    )


def _table(name: str, tokens: Sequence[Token], others: Sequence[Token]) -> str:
    costly = sorted(range(len(tokens)), key=lambda i: -tokens[i].cost)[:_COSTLY]
    rows = "".join(
        f'<tr><td class="n">{i}</td><td><bdi>{html.escape(tokens[i].text)}</bdi></td>'
        f"<td><bdi>{html.escape(_match(tokens[i], others))}</bdi></td>"
        f'<td class="n">{tokens[i].similarity:.4f}</td><td class="n">{tokens[i].weight:.5f}</td>'
        f'<td class="n">{tokens[i].cost:.5f}</td></tr>'
        for i in costly
        if tokens[i].cost > 0
    )
    head = "".join(
        f"<th{' class=n' if number else ''}>{text}</th>"
        for text, number in (
            ("position", True),
            ("token", False),
            ("best match", False),
            ("similarity", True),
            ("weight", True),
            ("cost", True),
        )
    )
    return f"<h2>{html.escape(name)}</h2><table><tr>{head}</tr>{rows}</table>"


def _match(token: Token, others: Sequence[Token]) -> str:
    return "—" if token.match is None else others[token.match].text
