"""Kernels in C for CPUs, where torch has no single operation: built where the installation found a
compiler."""
