"""Write the data files of flashbertscore from an installed bert-score 0.3.13 (MIT).

    python third_party/import_bert_score_tables.py

Two tables come out in python/flashbertscore/data: the default layer of each model, in the order
of the reference, and its 72 baseline files in one. Numbers stay the decimal text of the source.
tests/test_models.py and tests/test_baselines.py compare every value with the installed package.
"""

import csv
from pathlib import Path

import bert_score
from bert_score.utils import model2layers

DATA = Path(__file__).parents[1] / "python" / "flashbertscore" / "data"


def write_table(name: str, header: list[str], rows: list[list[str]]) -> None:
    """Write a tab-separated file with a header."""
    with (DATA / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def baseline_rows(folder: Path) -> list[list[str]]:
    """Return language, model, layer, P, R and F of every row of every file."""
    rows = []
    for path in sorted(folder.rglob("*.tsv")):
        lang, model = path.relative_to(folder).with_suffix("").as_posix().split("/", 1)
        lines = list(csv.reader(path.open(encoding="utf-8")))
        layers = [int(line[0]) for line in lines[1:]]
        if lines[0] != ["LAYER", "P", "R", "F"] or layers != list(range(len(layers))):
            msg = f"{path}: not a table of layers 0..L with columns LAYER,P,R,F"
            raise ValueError(msg)
        rows += [[lang, model, *line] for line in lines[1:]]
    return rows


if __name__ == "__main__":
    write_table(
        "model_layers.tsv",
        ["model", "layer"],
        [[model, str(layer)] for model, layer in model2layers.items()],
    )
    write_table(
        "baselines.tsv",
        ["lang", "model", "layer", "P", "R", "F"],
        baseline_rows(Path(bert_score.__file__).parent / "rescale_baseline"),
    )
