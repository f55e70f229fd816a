"""CUDA kernels, compiled on first use by NVRTC and launched through the driver.

Neither nvcc nor a host compiler is needed: `cuda.bindings` and NVRTC come with torch's CUDA wheels.
"""
