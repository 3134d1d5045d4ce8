"""The reference of regression_test.cc: Huber's estimator by scipy.

python recompute/calibration/tests/reference_fit.py
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

VALUES = np.array([2.1, 2.4, 3.2, 3.4, 4.1, 4.4, 5.1, 5.6, 5.9, 6.6, 30.0, -20.0])
THRESHOLD = 1.345


def huber_loss(residuals: np.ndarray, bend: float) -> float:
    size = np.abs(residuals)
    return float(np.where(size <= bend, size**2 / 2, bend * (size - bend / 2)).sum())


def main() -> None:
    features = np.stack([np.ones(len(VALUES)), np.arange(len(VALUES))], axis=1)
    found = np.linalg.lstsq(features, VALUES, rcond=None)[0]
    for _ in range(500):
        scale = float(np.median(np.abs(VALUES - features @ found)) * 1.482602218505602)
        # Nelder-Mead: another method than the one that is tested, on the loss itself.
        found = minimize(
            lambda b, bend: huber_loss(VALUES - features @ b, bend),
            found,
            args=(THRESHOLD * scale,),
            method="Nelder-Mead",
            options={"xatol": 1e-11, "fatol": 1e-14, "maxiter": 10_000},
        ).x
    scale = float(np.median(np.abs(VALUES - features @ found)) * 1.482602218505602)
    print(f"constant {found[0]:.8f} slope {found[1]:.8f} scale {scale:.8f}")


if __name__ == "__main__":
    main()
