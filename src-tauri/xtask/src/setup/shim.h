// Included before every file of mlx-c when it is built, and before its headers when Rust bindings are made.
#pragma once

#ifdef __cplusplus
// libstdc++ before GCC 13 has no <format>.
#if !__has_include(<format>)
#define FMT_HEADER_ONLY
#include <fmt/format.h>
namespace std {
using fmt::format;
}
#endif
#endif

// mlx-c declares the 16-bit float types on Arm only; mlx-rs uses them everywhere.
#if !defined(__aarch64__)
#define HAS_FLOAT16
#define HAS_BFLOAT16
#ifdef __cplusplus
#include "mlx/types/half_types.h"
typedef mlx::core::float16_t float16_t;
typedef mlx::core::bfloat16_t bfloat16_t;
#else
typedef struct {
  unsigned short bits;
} float16_t;
typedef unsigned short bfloat16_t;
#endif
#endif
