#ifndef GE2_FLOAT_SIN_H
#define GE2_FLOAT_SIN_H

#include "ge2/float_by_angle.h"

GE2_BY_ANGLE(sin)

#endif
