/* CUDA's words and functions as C++17 for the CPU: what stands before a kernel's source when it is run without a GPU.
 *
 * Each thread is a fiber, and memory is what C++ says: a kernel that is right here may still lack a fence. A thread
 * that waits for another must do so by an atomic, a fence, a vote, `__nanosleep` or `__ldcv`: nobody else runs while it
 * only looks at a volatile variable.
 */
#ifndef GE2_SHIM_H
#define GE2_SHIM_H

#define GE2_SHIM 1

#include "abi.h"

namespace {
const ge2_shim_runtime *ge2_shim;
}

#define GE2_SHIM_TEXT_(x) #x
#define GE2_SHIM_TEXT(x) GE2_SHIM_TEXT_(x)
#define GE2_SHIM_SITE __FILE__ ":" GE2_SHIM_TEXT(__LINE__) "\0" GE2_SHIM_TEXT(__COUNTER__)

#include "hooks.h"

#include "functions.h"

#include "bits.h"

#include "vectors.h"

#include "memory.h"

#include "warps.h"

#include "words.h"

#include "kernels.h"

#endif
