// Fibers: stacks that are switched by hand, with what the sanitizers have to be told about them.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t stack_bytes = 1 << 20;  // frames have red zones
#else
constexpr std::size_t stack_bytes = 1 << 16;
#endif

// What happens in its scope is the emulator's own business, no access of the program under test.
struct Unobserved {
#if defined(__SANITIZE_THREAD__)
  Unobserved() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unobserved() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unobserved() {}
  ~Unobserved() {}
#endif
};

// What came before release(place) in one fiber comes before what follows acquire(place) in others.
inline void release([[maybe_unused]] void* place) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(place);
#endif
}
inline void acquire([[maybe_unused]] void* place) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(place);
#endif
}

struct Fiber {
  void* stack = nullptr;  // the scheduler's is found out when it is first left
  std::size_t size = stack_bytes;
  [[maybe_unused]] void* fake_stack = nullptr;
  [[maybe_unused]] void* observer = nullptr;
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

#if defined(__x86_64__)
extern "C" void emulator_switch(void** save, void* load);
__asm__(R"(
.text
.weak emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, . - emulator_switch
)");
#endif

// Leaves `from` for `to`; returns when somebody switches back, never if this was the last time.
inline void switch_fiber(Fiber& from, Fiber& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.size);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.observer, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
  emulator_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// The first thing a fiber does; `scheduler` is where it was started from.
inline void arrive([[maybe_unused]] Fiber& scheduler) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &scheduler.size);
  scheduler.stack = const_cast<void*>(bottom);
#endif
}

inline void* new_stack() {
  return mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// Makes a fiber begin with `body` on a stack, which it leaves dirty.
inline void prepare(Fiber& fiber, void* stack, void (*body)()) {
  fiber.stack = stack;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack, stack_bytes);
#elif defined(__SANITIZE_THREAD__)
  fiber.observer = __tsan_create_fiber(0);
#endif
#if defined(__x86_64__)
  void** top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + stack_bytes);
  *--top = nullptr;  // the address `body` would return to; it also aligns the stack
  *--top = reinterpret_cast<void*>(body);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, body, 0);
#endif
}

// Ends a fiber that will not run again, and makes its stack ready for the next. ThreadSanitizer
// would take that one for a rival on the same addresses, so there the stack is a new one.
inline void* retire(Fiber& fiber) {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(fiber.observer);
  munmap(fiber.stack, stack_bytes);
  return new_stack();
#else
  return fiber.stack;
#endif
}

}  // namespace emulator
