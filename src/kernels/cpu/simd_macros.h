// Two attributes of kernel code that the language has no words for.
#pragma once

// A function that is never called as such, so that no copy of it exists outside its caller's instruction set.
#define LEVIN_INLINE [[gnu::always_inline]] static inline

// Unrolls the loop that follows; arrays indexed by it then live in registers.
#if defined(__clang__)
#define LEVIN_UNROLL _Pragma("unroll")
#else
#define LEVIN_UNROLL _Pragma("GCC unroll 16")
#endif
