"""The simulator: lower (to flat arrays), build and kernel (Numba), simulate, timeline."""

from placewright.sim.simulate import Outcome, Simulator, simulate

__all__ = ["Outcome", "Simulator", "simulate"]
