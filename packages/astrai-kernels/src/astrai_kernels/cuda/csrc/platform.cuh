// The only file that knows which compiler is in use: a small vocabulary over inline PTX for NVRTC
// and nvcc, and over the emulator of the tests for g++. No CUDA header is included, so that a
// machine without the toolkit can compile the kernels; 16-bit floats are storage, and converted.
#pragma once

namespace astrai {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
struct alignas(16) Vec16 {  // what one thread moves at once
  u32 x, y, z, w;
};
static_assert(sizeof(i64) == 8 && sizeof(Vec16) == 16 && sizeof(double) == 8, "unknown platform");
}  // namespace astrai

#if defined(ASTRAI_EMULATE)
#include "device.hpp"
#else

#define ASTRAI_DEVICE __device__ __forceinline__

namespace astrai {

// ---- Where a thread is
ASTRAI_DEVICE u32 thread_index() { return threadIdx.x; }
ASTRAI_DEVICE u32 lane_index() { return threadIdx.x & 31u; }
ASTRAI_DEVICE u32 warp_index() { return threadIdx.x >> 5; }
ASTRAI_DEVICE u32 block_x() { return blockIdx.x; }
ASTRAI_DEVICE u32 block_y() { return blockIdx.y; }
ASTRAI_DEVICE u32 block_z() { return blockIdx.z; }

// ---- Rendezvous
ASTRAI_DEVICE void block_sync() { __syncthreads(); }
ASTRAI_DEVICE void warp_sync() { __syncwarp(); }
ASTRAI_DEVICE u32 shuffle_xor(u32 x, u32 mask) { return __shfl_xor_sync(~0u, x, mask); }
ASTRAI_DEVICE u32 shuffle_up(u32 x, u32 delta) { return __shfl_up_sync(~0u, x, delta); }
ASTRAI_DEVICE u32 shuffle_from(u32 x, u32 lane) { return __shfl_sync(~0u, x, lane); }

// ---- Bits and arithmetic
ASTRAI_DEVICE f32 as_float(u32 x) { return __uint_as_float(x); }
ASTRAI_DEVICE u32 as_bits(f32 x) { return __float_as_uint(x); }
ASTRAI_DEVICE f32 exp2_fast(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ASTRAI_DEVICE f32 reciprocal(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ASTRAI_DEVICE f32 larger(f32 a, f32 b) { return fmaxf(a, b); }
ASTRAI_DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
ASTRAI_DEVICE u64 multiply_high(u64 a, u64 b) { return __umul64hi(a, b); }

// ---- 16-bit floats, two in a word
ASTRAI_DEVICE u32 pack_bf16(f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
ASTRAI_DEVICE u32 pack_f16(f32 low, f32 high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
ASTRAI_DEVICE f32 f16_to_float(u16 bits) {
  f32 f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}

// ---- Memory
// Reads what no kernel on the device is writing; once, so it stays out of the first-level cache.
ASTRAI_DEVICE Vec16 load_streaming(const void* p) {
  Vec16 r;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p));
  return r;
}
// Adds one and gives the value before; beyond `last` it begins again at 0.
ASTRAI_DEVICE u32 count_up(u32* counter, u32 last) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(last)
               : "memory");
  return before;
}
ASTRAI_DEVICE void shared_add(u32* p, u32 x) { atomicAdd(p, x); }
ASTRAI_DEVICE void shared_add(u64* p, u64 x) { atomicAdd(p, x); }

// ---- Asynchronous copies to shared memory: 16 bytes, zeros where not wanted; or 4 bytes
ASTRAI_DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
ASTRAI_DEVICE void copy_async_16(void* shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(wanted ? 16 : 0)
               : "memory");
}
ASTRAI_DEVICE void copy_async_4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)),
               "l"(global)
               : "memory");
}
ASTRAI_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's newest groups are on their way.
template <int pending>
ASTRAI_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- Matrices: fragments as the PTX ISA documents them for m16n8k16
ASTRAI_DEVICE void load_matrices(u32 (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}
ASTRAI_DEVICE void load_matrices_transposed(u32 (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}
// Transposes a matrix of which each lane has a pair, as `load_matrices` gives it.
ASTRAI_DEVICE u32 transpose_matrix(u32 pair) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}
#define ASTRAI_MMA(T)                                                                        \
  ASTRAI_DEVICE void multiply_add(T, f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {       \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T                          \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
  }
ASTRAI_MMA(bf16)
ASTRAI_MMA(f16)
#undef ASTRAI_MMA

}  // namespace astrai
#endif

namespace astrai {

// ---- Shuffles of other types
ASTRAI_DEVICE i32 shuffle_xor(i32 x, u32 mask) { return (i32)shuffle_xor((u32)x, mask); }
ASTRAI_DEVICE i32 shuffle_up(i32 x, u32 delta) { return (i32)shuffle_up((u32)x, delta); }
ASTRAI_DEVICE i32 shuffle_from(i32 x, u32 lane) { return (i32)shuffle_from((u32)x, lane); }
ASTRAI_DEVICE f32 shuffle_xor(f32 x, u32 mask) { return as_float(shuffle_xor(as_bits(x), mask)); }
ASTRAI_DEVICE u64 pair_of(u32 high, u32 low) { return (u64)high << 32 | low; }
ASTRAI_DEVICE u64 shuffle_xor(u64 x, u32 mask) {
  return pair_of(shuffle_xor((u32)(x >> 32), mask), shuffle_xor((u32)x, mask));
}
ASTRAI_DEVICE u64 shuffle_up(u64 x, u32 delta) {
  return pair_of(shuffle_up((u32)(x >> 32), delta), shuffle_up((u32)x, delta));
}
ASTRAI_DEVICE u64 shuffle_from(u64 x, u32 lane) {
  return pair_of(shuffle_from((u32)(x >> 32), lane), shuffle_from((u32)x, lane));
}

}  // namespace astrai
