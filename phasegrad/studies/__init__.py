"""Studies: grids of variants x environments x seeds, run side by side and summed up with honest intervals."""
