"""The threshold of the local model, on texts of everyday life: what has nothing to do with any of them is not
near, and what asks for one of them in other words mostly is."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.pipelines.documents.local_embedder import SIMILARITY_MIN, local_embedder

TEXTS = {
    "lease": "The tenant pays the rent on the first day of each month to the landlord's bank account. Either"
    " party may terminate the lease with a notice of three months, in writing. The deposit is returned within"
    " six weeks after the tenant has moved out, less the cost of any damage.",
    "pump": "Lubricate the pump every 500 hours. Before maintenance, switch off the motor and close"
    " the valves on both sides. Worn seals cause leakage and have to be replaced at once; spare parts are"
    " ordered from the service centre.",
    "minutes": "The board approved the budget for next year with two votes against. Revenue grew by 12%"
    " to 4.3 million euros, while the costs of personnel stayed the same. The next meeting is on 14 March.",
    "privacy": "Personal data of customers is stored for ten years and deleted afterwards. Anybody may ask"
    " which data is held about them, and have it corrected. Passwords are never stored in plain text.",
    "invoice": "Invoice 2024-117 for consulting services in May. The amount of 3,420 euros is due within 30"
    " days of receipt. Please transfer it to the account below and state the number of the invoice.",
}
ASKED = {
    "how much is the monthly rent and when is it due": "lease",
    "giving notice to end a rental contract": "lease",
    "replacing a leaking seal": "pump",
    "machine maintenance interval": "pump",
    "annual budget decision of the board": "minutes",
    "how long are customer records kept": "privacy",
    "when does the bill have to be paid": "invoice",
}
NONSENSE = [
    "asdkjh qwoieu zxmcnb",
    "xyzzy",
    "qqqq wwww eeee rrrr",
    "best pizza recipe with mozzarella",
    "football world cup winners",
    "how to train a puppy",
    "quantum chromodynamics lattice",
    "rose garden pruning in spring",
]


def similarities(query: str) -> dict[str, float]:
    texts = local_embedder().embed(list(TEXTS.values()), beat=lambda: None)
    [asked] = local_embedder().embed([query], beat=lambda: None)
    return dict(zip(TEXTS, (texts @ asked).tolist(), strict=True))


@pytest.mark.parametrize("query", NONSENSE)
def test_what_has_nothing_to_do_with_a_text_is_not_near(query: str) -> None:
    assert max(similarities(query).values()) < SIMILARITY_MIN


def test_most_questions_in_other_words_are_near_the_right_text() -> None:
    best = {query: max(similarities(query).items(), key=lambda item: item[1]) for query in ASKED}
    right = [best[query][0] == name for query, name in ASKED.items()]
    near = [best[query][1] >= SIMILARITY_MIN for query in ASKED]
    assert np.mean(right) >= 0.8, best
    assert np.mean(near) >= 0.8, best
