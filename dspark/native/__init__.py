"""Loops that torch has no single operation for on a CPU, in C: built where the installation found a
compiler."""
