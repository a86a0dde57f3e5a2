"""Hold everything fixed, raise the number of requests until the speed-up crosses 1; then the rest.

``grid`` says what is measured, ``backends`` measure it, ``recorder`` keeps it cell by cell, ``run``
leads through it, ``report`` draws what was found.
"""
