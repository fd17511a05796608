/* What the special functions need in CUDA; special_functions.h has them. */
#ifndef GE2_SPECIAL_CUH
#define GE2_SPECIAL_CUH

#include "ge2/float.cuh"
#include "ge2/special_functions.h"

#endif
