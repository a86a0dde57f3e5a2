"""Faults to plant in the real source, and the runs that show which test catches which."""
