"""Models in fewer bits: rounding, calibrated rounding, training with the rounding in the loop, and the folders that are written."""
