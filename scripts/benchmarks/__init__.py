"""Measurements of the engine: speed on recorded answers, exactness on a device, time per step."""
