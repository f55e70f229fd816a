"""Native CPU kernels: C++ sources, their compiler and cache, and the weights that use them.

Nothing here is compiled or loaded by an import; the first use does both.
"""
