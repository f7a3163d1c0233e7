"""Error bands of llama.cpp, from residuals that its fit had not seen. tools/fit_llama.py writes them into calibration/llama.yaml.

`measured`: parts and models left out, of a class of parts, of a vendor, and in all. `inherited`, of a vendor: classes left out whole, which
is what a class gets of which there are no rows; in all: vendors left out whole, for makers without rows and for processors.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from residual_bands import LEAST, Made, Table, balance, made

QUANTITIES = {"tpot": "decode_tokens_per_s", "ttft": "prefill_tokens_per_s"}
SERIES = ("part", "group", "weights")
MEASURED = ("one part out", "one model out")
CLASSES = 3  # from which on bands of what is inherited are made without one of them; of two, the one says little of the other
Found = dict[str, np.ndarray]


def bands(d: pd.DataFrame, found: Found, weight: np.ndarray, engine: str) -> Table:
    """Bands by quantity and place; rows that are not fitted to (weight 0) say nothing of a part."""
    d = d.assign(all="")
    table: Table = {}
    for quantity, name in QUANTITIES.items():
        rows = ((d.quantity == name) & (weight > 0)).to_numpy()
        table[quantity] = _places(d, found, rows, engine)
    return table


def _places(d: pd.DataFrame, found: Found, rows: np.ndarray, engine: str) -> dict[str, dict[str, Made]]:
    made_of: dict[str, dict[str, Made]] = {}
    for column, unseen in (("all", "one maker out"), ("maker", "one class out"), ("class", None)):
        for value in sorted(set(d[column][rows])):
            own = rows & (d[column] == value).to_numpy()
            if own.sum() >= LEAST:
                general = made_of.get(f"{engine} on {value.split('-')[0]}" if column == "class" else engine, {})
                found_of = {name: predicted[own] for name, predicted in found.items()}
                made_of[f"{engine} on {value}" if value else engine] = _known(d[own], found_of, unseen, general)
    return made_of


def _known(d: pd.DataFrame, found: Found, unseen: str | None, general: dict[str, Made]) -> dict[str, Made]:
    weight = balance(list(zip(*(d[c] for c in SERIES), strict=True)))
    ratio = {name: np.log(d.seconds.to_numpy() / predicted) for name, predicted in found.items()}
    units = [d[column].to_numpy() for column in ("part", "shape")]
    made_of = {"measured": made([ratio[name] for name in MEASURED], weight, units, general=general.get("measured"))}
    if unseen is not None and d["class"].nunique() > 1:
        unit = d["class" if d["class"].nunique() >= CLASSES else "part"].to_numpy()
        made_of["inherited"] = made([ratio[unseen]], weight, [unit], general=general.get("inherited"))
    return made_of
