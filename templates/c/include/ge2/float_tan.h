#ifndef GE2_FLOAT_TAN_H
#define GE2_FLOAT_TAN_H

#include "ge2/float_by_angle.h"

GE2_BY_ANGLE(tan)

#endif
