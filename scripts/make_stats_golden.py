#!/usr/bin/env python3
"""Makes tests/reports/stats.json: what scipy says of generated samples, for tests/reports/stats.rs.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install scipy
    /tmp/venv/bin/python scripts/make_stats_golden.py > tests/reports/stats.json

Each case has two samples, Welch's test of them (`scipy.stats.ttest_ind` without equal variances) with its confidence
interval, and the number of seeds per group that would settle a difference of the size seen, alone and as one of ten
tests. That number is found here without the program's formula: it is the smallest n whose power under the noncentral t
distribution reaches 0.8.
"""

import json
import math
import random
import sys

import numpy as np
import scipy
from scipy import stats

ALPHA, POWER = 0.05, 0.8


def power(n, difference, a, b, alpha):
    """The power of Welch's test at a level of two groups of n with these standard deviations."""
    df = (n - 1) * (a**2 + b**2) ** 2 / (a**4 + b**4)
    shift = abs(difference) / math.sqrt((a**2 + b**2) / n)
    critical = stats.t.ppf(1 - alpha / 2, df)
    found = stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift)
    if math.isfinite(found):
        return found
    # scipy gives up on large shifts; sampling the statistic by its definition settles those, which are far above POWER
    draws = np.random.default_rng(1)
    t = (draws.standard_normal(400_000) + shift) / np.sqrt(draws.chisquare(df, 400_000) / df)
    found = float(np.mean(np.abs(t) > critical))
    assert abs(found - POWER) > 0.01, "too close to tell by sampling"
    return found


def seeds(difference, a, b, alpha=ALPHA):
    """The smallest n per group that reaches the power; None beyond what is worth a search."""
    for n in range(2, 400):
        if power(n, difference, a, b, alpha) >= POWER:
            return n
    return None


def case(rng):
    n = [rng.choice([2, 3, 4, 5, 8, 20]) for _ in range(2)]
    scale = 10 ** rng.uniform(-3, 0)
    ratio = 10 ** rng.uniform(-1, 1)
    shift = scale * rng.choice([0, 0.2, 0.5, 1, 2, 5])
    mean = rng.uniform(2, 11)
    samples = [
        [float(f"{rng.gauss(mean, scale):.7g}") for _ in range(n[0])],
        [float(f"{rng.gauss(mean + shift, scale * ratio):.7g}") for _ in range(n[1])],
    ]
    test = stats.ttest_ind(samples[1], samples[0], equal_var=False)
    interval = test.confidence_interval(1 - ALPHA)
    deviations = [float(np.std(sample, ddof=1)) for sample in samples]
    difference = float(np.mean(samples[1]) - np.mean(samples[0]))
    return {
        "first": samples[0],
        "second": samples[1],
        "means": [float(np.mean(sample)) for sample in samples],
        "sds": deviations,
        "t": float(test.statistic),
        "df": float(test.df),
        "p": float(test.pvalue),
        "interval": [float(interval.low), float(interval.high)],
        "seeds": seeds(difference, *deviations),
        "seeds_of_ten": seeds(difference, *deviations, ALPHA / 10),
    }


def main():
    rng = random.Random(1)
    cases = [case(rng) for _ in range(120)]
    p = [[rng.random() ** 3 for _ in range(rng.randint(1, 6))] for _ in range(20)]
    adjusted = [{"p": values, "holm": holm(values)} for values in p]
    json.dump({"scipy": scipy.__version__, "cases": cases, "adjusted": adjusted}, sys.stdout, indent=None)
    print()


def holm(values):
    """Holm's method by its definition: the largest over all smaller p-values of p times the hypotheses left."""
    return [
        min(1.0, max(q * sum(r >= q for r in values) for q in values if q <= value)) for value in values
    ]


if __name__ == "__main__":
    main()
