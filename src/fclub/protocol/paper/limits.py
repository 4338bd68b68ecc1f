"""How many uploads and downloads there can have been, from what the global server can know."""

from __future__ import annotations

from math import log

from fclub.core.paper.ucb import Rules


def events_limit(rules: Rules, dim: int, observations: int, clusters: int, phases: int) -> float:
    """Uploads and downloads that `clusters` local clusters can have had in so many phases.

    An upload multiplies det S by more than U, a download by more than D, and within a phase log det S
    grows by at most d·log(ρ_max/ρ_min + T/(dρ_min)). Whatever happens, an observation causes at most
    one upload and one download for every other local cluster: the smaller of both limits counts.
    """
    at_once = float(observations * clusters)
    if min(rules.log_upload, rules.log_download) <= 0.0:
        return at_once
    growth = dim * log(rules.rho_max / rules.rho_min + observations / (dim * rules.rho_min))
    steps = 1.0 / rules.log_upload + 1.0 / rules.log_download
    return min(at_once, clusters * max(phases, 1) * growth * steps)
