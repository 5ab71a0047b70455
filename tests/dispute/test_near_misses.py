"""A result that misses the interval rule by a little accuses nobody; one that misses by more, or too often, does."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.op_disputes import Bench
from support.runs import DIGITS, Case

from vt_core.dispute import judge
from vt_core.dispute import records as rec
from vt_core.dispute.judge import Finding, judge_record
from vt_core.dispute.messages import Role
from vt_core.dispute.recompute import MOST, Recomputed, Site, misfit, recompute
from vt_core.dispute.rules import Ruling
from vt_core.dispute.witness import Witness
from vt_core.evidence.canonical import dumps
from vt_core.numerics import Grid, Tolerance
from vt_core.training.state import digest

WIDE = {"contraction": {"rtol_exp": None, "atol_exp": -34}}
"""So wide that many elements lie a few tolerances from a rounding boundary."""


@dataclass
class Product:
    """A convolution that the trainer claims, with what the judge finds before rounding."""

    bench: Bench
    index: int
    record: dict[str, object]
    witness: Witness
    found: Recomputed

    def claim(self, values: torch.Tensor) -> Ruling | None:
        """Rule on a trainer that claims ``values`` and has the honest log."""
        honest = self.bench.claim(1)
        lie = dumps({**self.record, "results": [rec.value_digest(values)]})
        case = judge.Case(
            self.bench.spec,
            1,
            self.index,
            lie,
            honest.records[self.index],
            lambda j: honest.records[j],
            digest(self.bench.after(0)[0]).root,
            hashlib.sha256(self.witness.log).digest(),
        )
        return judge_record(case, dataclasses.replace(self.witness, outputs={0: values}))

    def moved(self, least: float, most: float) -> list[tuple[int, float]]:
        """Return unlogged elements with another grid value that is ``least`` to ``most`` tolerances away."""
        site, grid = self.found.sites[0], Grid.parse(self.bench.spec.grid)
        own = self.found.values[0].reshape(-1)
        result = []
        for place, value in enumerate(own.tolist()):
            for side in (-math.inf, math.inf):
                other = own.clone()
                other[place] = float(np.nextafter(np.float32(value), np.float32(side)))
                count, distance = misfit(site, own, other, grid)
                assert count == 1
                if place not in site.logged and least < distance <= most:
                    result.append((place, float(other[place])))
        return list(dict(result).items())  # one of each element


@pytest.fixture(scope="module")
def product() -> Product:
    case = Case(DIGITS, {"width": 4, "batch_size": 4}, {"seed": 7, "steps": 2, "policy": WIDE})
    bench = Bench(case, agreed=False)
    claim = bench.claim(1)
    index = next(i for i, r in enumerate(claim.records) if rec.parse_record(r)["op"] == "aten.convolution.default")
    record = rec.parse_record(claim.records[index])
    with claim._session.open():
        witness = claim.witness(index)
    first, count = record["place"][:2]
    entries = {i - first: e for i, e in claim.log.sites.items() if first <= i < first + count}
    return Product(bench, index, record, witness, recompute(bench.spec, 1, record, witness.inputs, entries))


def with_values(product: Product, changes: list[tuple[int, float]]) -> torch.Tensor:
    values = product.found.values[0].clone()
    for place, value in changes:
        values.reshape(-1)[place] = value
    return values


def test_the_honest_result_stands(product: Product) -> None:
    assert product.found.results == product.record["results"]
    assert product.found.sites[0].logged, "nothing was logged: the tolerance is not wide enough for this test"


def test_a_few_near_misses_accuse_nobody_and_more_do(product: Product) -> None:
    near = product.moved(1.0, judge.LIMITS.exceeded_within)
    assert len({place for place, _ in near}) > MOST, "too few elements are near a boundary"
    for count in (1, MOST):
        ruling = product.claim(with_values(product, near[:count]))
        assert ruling is not None and (ruling.winner, ruling.reason) == (None, Finding.TOLERANCE_EXCEEDED)
    ruling = product.claim(with_values(product, near[: MOST + 1]))
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)


def test_a_far_miss_is_no_excuse(product: Product) -> None:
    far = product.moved(2 * judge.LIMITS.exceeded_within, math.inf)
    ruling = product.claim(with_values(product, far[:1]))
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)
    # Not even beside near ones.
    near = product.moved(1.0, judge.LIMITS.exceeded_within)
    ruling = product.claim(with_values(product, [near[0], far[-1]]))
    assert ruling is not None and ruling.winner is Role.AUDITOR


def test_another_value_than_the_own_entry_names_is_no_excuse(product: Product) -> None:
    place = min(product.found.sites[0].logged)
    value = float(product.found.values[0].reshape(-1)[place])
    for side in (-math.inf, math.inf):
        other = float(np.nextafter(np.float32(value), np.float32(side)))
        ruling = product.claim(with_values(product, [(place, other)]))
        assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)


@pytest.mark.parametrize(
    ("x", "claimed", "expected"),
    [
        (1.0, 1.0, 0.0),
        (1.0 + 2.0**-24 - 3 * 2.0**-40, 1.0 + 2.0**-23, 4.0),  # three tolerances below the boundary, and one inside
        (1.0 + 2.0**-24 + 3 * 2.0**-40, 1.0, 4.0),
        (1.0 + 2.0**-24 + 3 * 2.0**-40, 1.0 + 2.0**-25, math.inf),  # no grid value
        (5 * 2.0**-40, 0.0, 5.0),  # by the zero rule
        (0.0, 2.0**-149, math.inf),  # the cell of a tiny value is narrower than the tolerance: it needs an entry
        (1.0, math.nan, math.inf),
        (math.inf, 1.0, math.inf),
        (2.0**128 * (1 - 2.0**-25), math.inf, 1.0),  # the very boundary of infinity
        (-(2.0**128) * (1 - 2.0**-25), -math.inf, 1.0),
    ],
)
def test_distances(x: float, claimed: float, expected: float) -> None:
    grid = Grid.parse("float32")
    before, own = torch.tensor([x], dtype=torch.float64), torch.tensor([x], dtype=torch.float64)
    own = own.to(torch.float32).to(torch.float64)
    if abs(x) > 2.0**127:
        own[0] = math.copysign(grid.max_value, x)
    if 0 < abs(x) < 2.0**-30:
        own[0] = x
    site = Site(own, before, Tolerance(None, -40), 0, frozenset(), {})
    _, distance = misfit(site, own, torch.tensor([claimed], dtype=torch.float64), grid)
    assert distance == pytest.approx(expected, rel=1e-6)


def test_too_many_differences_are_not_looked_at() -> None:
    own = torch.zeros(MOST + 1, dtype=torch.float64)
    site = Site(own, own, Tolerance(None, -40), 0, frozenset(), {})
    assert misfit(site, own, own + 1.0, Grid.parse("float32")) == (MOST + 1, math.inf)
    assert misfit(site, own, own.clone(), Grid.parse("float32")) == (0, 0.0)
    nan = torch.full((2,), math.nan, dtype=torch.float64)
    assert misfit(site, nan, nan.clone(), Grid.parse("float32")) == (0, 0.0)


def test_near_zero_a_claim_must_be_a_multiple_of_the_least_step() -> None:
    tolerance, step = Tolerance(None, -44, 5), 2.0**-39
    x = torch.tensor([3.5 * step - 3 * 2.0**-44], dtype=torch.float64)
    site = Site(x, x, tolerance, 0, frozenset(), {})
    own, grid = torch.tensor([3 * step], dtype=torch.float64), Grid.parse("float32")
    assert misfit(site, own, torch.tensor([4 * step], dtype=torch.float64), grid) == (1, pytest.approx(4.0))
    finer = torch.tensor([3.25 * step], dtype=torch.float64)
    assert misfit(site, own, finer, grid) == (1, math.inf), "a float32, but none that the step allows"
    bare = dataclasses.replace(site, tolerance=Tolerance(None, -44))
    assert misfit(bare, own, finer, grid)[0] == 1
