"""Reference values for cnp/statistics from NumPy and SciPy, and the check that they still hold.

`python tests/test_statistics_reference.py` (needs SciPy) writes them to
cnp/tests/data/statistics_reference.json, which the C++ tests read. The tests here derive the values
anew and compare: what needs only NumPy always, the rest where SciPy is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

REFERENCE = Path(__file__).resolve().parent.parent / "cnp/tests/data/statistics_reference.json"

QUANTILES = [0.0, 0.05, 0.25, 0.5, 0.731, 0.95, 1.0]
DEGREES = [0.5, 1, 1.5, 2, 3, 4.2, 7, 10, 29, 100, 1e4, 1e7]
PROBABILITIES = [1e-9, 1e-4, 0.025, 0.3, 0.5, 0.5000001, 0.8, 0.975, 0.9999]
POINTS = [-1e3, -12.7, -2.0, -1e-3, 0.0, 1e-4, 0.7, 1.96, 30.0]


def series() -> dict[str, list[float]]:
    """Values of the kinds that occur, and awkward ones."""
    random = np.random.default_rng(20261130)
    noise = random.normal(size=200)
    correlated = np.zeros(200)
    for i in range(1, 200):
        correlated[i] = 0.7 * correlated[i - 1] + noise[i]
    return {
        "steps": (1.7 * np.exp(0.02 * random.normal(size=25))).tolist(),
        "skewed": (1 + random.exponential(size=101)).tolist(),
        "correlated": (1.5 + 0.02 * correlated).tolist(),
        "two": [1.0, 2.0],
        "ties": [1.0, 1.0, 1.0, 2.0, 2.0, 0.5],
        "offset": [1e9 + value for value in (4.0, 7.0, 13.0, 16.0)],
        "bytes": [float(value) for value in random.integers(1, 2**40, size=64)],
    }


def run_pairs() -> list[dict[str, list[float]]]:
    random = np.random.default_rng(7)
    sizes = [(2, 2), (5, 5), (3, 9), (20, 20)]
    return [
        {
            "a": (1.5 * np.exp(0.01 * random.normal(size=n))).tolist(),
            "b": (1.7 * np.exp(0.03 * random.normal(size=m))).tolist(),
        }
        for n, m in sizes
    ]


def initial_monotone_sequence(values: np.ndarray) -> float:
    """Geyer (1992), section 3.3, term by term from the definition."""
    n = len(values)
    away = values - values.mean()
    gamma = np.array([np.sum(away[: n - k] * away[k:]) / n for k in range(n)] + [0.0])
    pairs = [gamma[2 * m] + gamma[2 * m + 1] for m in range(n // 2 + n % 2)]
    kept: list[float] = []
    for pair in pairs:
        if pair <= 0:
            break
        kept.append(min([pair, *kept]))
    tau = -1 + 2 * sum(kept) / gamma[0]
    return float(max(1, n / max(1, tau)))


def with_numpy() -> dict[str, Any]:
    found = {}
    for name, values in series().items():
        array = np.array(values)
        away = array - array.mean()
        lag1 = float(np.sum(away[1:] * away[:-1]) / np.sum(away**2)) if len(array) > 2 else 0.0
        found[name] = {
            "values": values,
            "quantiles": [[p, float(np.quantile(array, p))] for p in QUANTILES],
            "median": float(np.median(array)),
            "mean": float(np.mean(array)),
            "standard_deviation": float(np.std(array, ddof=1)),
            "median_absolute_deviation": float(np.median(np.abs(array - np.median(array)))),
            "lag1_autocorrelation": lag1,
            "effective_sample_size": initial_monotone_sequence(array),
        }
    return found


def on_off_blocks() -> dict[str, Any]:
    """Two runs of interleaved blocks with drift, and the regression solved as one system."""
    from scipy import stats

    random = np.random.default_rng(11)
    rows, blocks = [], []
    for run, count in enumerate((9, 6)):
        for i in range(count):
            on = i % 2
            log = 0.3 * run + 0.01 * i * (1 + run) + 0.015 * on + 0.004 * random.normal()
            own = [float(run == k) for k in (0, 1)]
            rows.append([*own, *(i * level for level in own), float(on)])
            blocks.append({"run": run, "on": bool(on), "seconds": float(np.exp(log))})
    design = np.array(rows)
    logs = np.log([block["seconds"] for block in blocks])
    solution, *_ = np.linalg.lstsq(design, logs, rcond=None)
    degrees = len(rows) - design.shape[1]
    errors = logs - design @ solution
    covariance = np.sum(errors**2) / degrees * np.linalg.inv(design.T @ design)
    half = stats.t.ppf(0.975, degrees) * np.sqrt(covariance[-1, -1])
    return {
        "blocks": blocks,
        "ratio": float(np.exp(solution[-1])),
        "ci95": [float(np.exp(solution[-1] - half)), float(np.exp(solution[-1] + half))],
    }


# r of kSessionShare in cnp/run_ratio.h.
SESSION_ODDS = 0.6 / 0.4


def row_of(result: Any, level: float) -> dict[str, Any]:
    interval = result.confidence_interval(level)
    return {
        "level": level,
        "p_value": float(result.pvalue),
        "degrees": float(result.df),
        "interval": [float(np.exp(interval.low)), float(np.exp(interval.high))],
    }


def from_statistics(means: list[float], variances: list[float], degrees: list[float]) -> Any:
    """Welch's test from the variances of two means."""
    from scipy import stats

    sizes = [d + 1 for d in degrees]
    deviations = [float(np.sqrt(v * n)) for v, n in zip(variances, sizes, strict=True)]
    return stats.ttest_ind_from_stats(
        means[0], deviations[0], sizes[0], means[1], deviations[1], sizes[1], equal_var=False
    )


def correlated_mean(logs: np.ndarray) -> tuple[float, float]:
    """Variance of the mean of an AR(1) series, and its degrees of freedom."""
    n = len(logs)
    away = logs - logs.mean()
    measured = np.sum(away[1:] * away[:-1]) / np.sum(away**2)
    phi = min(max(measured + (1 + 4 * measured) / n, 0), 0.97)
    inflation = 1 + 2 * sum((1 - k / n) * phi**k for k in range(1, n))
    kept = max(1 - (inflation - 1) / (n - 1), 0.1)
    variance = np.var(logs, ddof=1) / kept * inflation / n
    return float(variance), float(max(1, n / inflation - 1))


def run_ratios() -> list[dict[str, Any]]:
    """What ratio_of_runs(), independent_ratio() and steps_ratio() give: one row a way to choose."""
    from scipy import stats

    random = np.random.default_rng(23)

    def medians(count: int, level: float = 1.5) -> list[float]:
        return (level * np.exp(0.01 * random.normal(size=count))).tolist()

    rows = []
    for size in (3, 8):  # pairs
        a, b = medians(size, 1.53), medians(size)
        row = row_of(stats.ttest_rel(np.log(a), np.log(b)), 0.95)
        rows.append({"method": "pairs", "a": a, "b": b, **row})
    for sizes in ((4, 6), (9, 4)):  # sessions of one run each
        a, b = medians(sizes[0], 1.53), medians(sizes[1])
        row = row_of(stats.ttest_ind(np.log(a), np.log(b), equal_var=False), 0.98)
        rows.append({"method": "sessions", "a": a, "b": b, **row})
        rows.append({"method": "independent", "a": a, "b": b, **row})
    for sizes in ((2, 2), (5, 5), (3, 10)):  # one session a side
        a, b = medians(sizes[0], 1.53), medians(sizes[1])
        means, variances = [], []
        for side in (np.log(a), np.log(b)):
            means.append(float(side.mean()))
            variances.append(float(np.var(side, ddof=1) * (SESSION_ODDS + 1 / len(side))))
        result = from_statistics(means, variances, [len(a) - 1, len(b) - 1])
        share = variances[0] / sum(variances)
        degrees = 1 / (share**2 / (len(a) - 1) + (1 - share) ** 2 / (len(b) - 1))
        half = stats.t.ppf(0.975, degrees) * np.sqrt(sum(variances))
        ratio = means[0] - means[1]
        rows.append({
            "method": "one session", "a": a, "b": b, "level": 0.95, "degrees": float(degrees),
            "p_value": float(result.pvalue),
            "interval": [float(np.exp(ratio - half)), float(np.exp(ratio + half))],
        })  # fmt: skip
    for phi in (0.0, 0.6):  # steps of one run a side
        sides = []
        for level in (1.53, 1.5):
            noise = random.normal(size=40)
            for i in range(1, 40):
                noise[i] = phi * noise[i - 1] + np.sqrt(1 - phi**2) * noise[i]
            sides.append((level * np.exp(0.02 * noise)).tolist())
        logs = [np.log(side) for side in sides]
        spreads = [correlated_mean(side) for side in logs]
        result = from_statistics(
            [float(side.mean()) for side in logs], [s[0] for s in spreads], [s[1] for s in spreads]
        )
        rows.append({
            "method": "steps", "a": sides[0], "b": sides[1], "p_value": float(result.pvalue),
        })  # fmt: skip
    return rows


def with_scipy() -> dict[str, Any]:
    from scipy import stats

    ratios = []
    for pair in run_pairs():
        log_a, log_b = np.log(pair["a"]), np.log(pair["b"])
        welch = stats.ttest_ind(log_a, log_b, equal_var=False)
        interval = welch.confidence_interval(0.95)
        ratios.append({**pair, "ratio": float(np.exp(log_a.mean() - log_b.mean()))})
        ratios[-1]["welch"] = [float(np.exp(interval.low)), float(np.exp(interval.high))]
        if len(log_a) == len(log_b):
            paired = stats.ttest_rel(log_a, log_b).confidence_interval(0.95)
            ratios[-1]["paired"] = [float(np.exp(paired.low)), float(np.exp(paired.high))]
    intervals = {}
    for name, values in series().items():
        interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        intervals[name] = [float(interval.low), float(interval.high)]
    return {
        "student_t_cdf": [[t, d, float(stats.t.cdf(t, d))] for d in DEGREES for t in POINTS],
        "student_t_quantile": [
            [p, d, float(stats.t.ppf(p, d))] for d in DEGREES for p in PROBABILITIES
        ],
        "interval95_of_runs": intervals,
        "ratios": ratios,
        "on_off": on_off_blocks(),
        "run_ratios": run_ratios(),
    }


def assert_close(found: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_close(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, f"{where}.{i}")
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), where


def test_numpy_gives_the_committed_values() -> None:
    assert_close(with_numpy(), json.loads(REFERENCE.read_text())["numpy"])


def test_scipy_gives_the_committed_values() -> None:
    pytest.importorskip("scipy")
    assert_close(with_scipy(), json.loads(REFERENCE.read_text())["scipy"])


if __name__ == "__main__":
    values = {"numpy": with_numpy(), "scipy": with_scipy()}
    REFERENCE.write_text(json.dumps(values, separators=(",", ":")) + "\n")
